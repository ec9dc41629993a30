"""The Avro schemas: one folder a record, one file a version, never edited after release."""
