"""Methods, the rows of tables: ``registry`` lists all, ``methods.toml`` describes them."""
