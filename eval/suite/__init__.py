"""Whole tables: every planner in every setting, resumable, and the pages of results that come of them."""
