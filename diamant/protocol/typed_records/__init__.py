"""Records declared as annotated classes: their wire types, and the layouts that read and write them."""
