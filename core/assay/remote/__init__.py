"""What reaches assay from elsewhere: answers of another trainer or of an HTTP client become tasks and rollouts here."""
