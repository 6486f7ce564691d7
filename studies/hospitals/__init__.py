"""Heart disease in four hospitals: shared, personalised and locally trained models."""
