"""Records declared by annotated classes: wire types, and the layouts that read and write them."""
