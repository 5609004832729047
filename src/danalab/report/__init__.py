"""Figures, tables and pages made from run folders. Reads them, never writes into them."""
