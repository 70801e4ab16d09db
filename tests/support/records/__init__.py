"""Random and odd records, as producers send them and as files hold them."""
