"""How anything is shown: terminal tables, charts and HTML pages. It computes nothing and knows no command."""
