"""Which layer is meant by a name or a model's configuration, and which cases does it stand for?"""
