"""What the stand-in does behind SGLang's command line and endpoints."""
