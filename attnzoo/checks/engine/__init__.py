"""What runs a law: its case and layer, its evidence, the runner and the report. Knows no law."""
