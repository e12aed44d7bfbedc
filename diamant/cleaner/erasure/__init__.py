"""An erasure on disk: its intent, where its key is, which are pending."""
