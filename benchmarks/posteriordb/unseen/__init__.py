"""`sample` on models that are in no reference database, beside long exact runs or closed forms."""
