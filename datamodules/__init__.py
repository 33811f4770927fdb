"""Data sets with logged feedback, one LightningDataModule a file."""
