"""UNDERSTANDING: pictures and tables, made from run folders."""
