"""On which values a case is run: operands of models and regimes, and the subject that is called on them."""
