"""What a process of the server answers: functions of ``import knee`` and the page's views, as plain data."""
