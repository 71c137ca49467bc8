"""At which configurations is a kernel wrong? Random ones, and the smallest that shows each fault."""
