"""Parts of an offline HTML page: document, tables, lanes, figures."""
