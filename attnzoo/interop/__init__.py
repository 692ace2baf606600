"""Where attnzoo meets other libraries: Hugging Face models (`transformers`, `models`)."""
