"""The values on which a case runs: operands of models and regimes, and the subject that is called on them."""
