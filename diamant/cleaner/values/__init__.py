"""Values with a schema: serializers' frames, sources of schemas, decoding, and changes of fields."""
