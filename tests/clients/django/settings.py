"""Settings for Django's own tests of its caches: each cache is a gateway without a password.

Django's tests/runtests.py reads them. RESP_OPEN and MEMCACHED_OPEN are the gateway's addresses.
"""

import os

BACKENDS = "django.core.cache.backends."
CACHES = {
    "default": {"BACKEND": BACKENDS + "locmem.LocMemCache"},
    "redis": {
        "BACKEND": BACKENDS + "redis.RedisCache",
        "LOCATION": "redis://" + os.environ["RESP_OPEN"],
    },
    "pymemcache": {
        "BACKEND": BACKENDS + "memcached.PyMemcacheCache",
        "LOCATION": os.environ["MEMCACHED_OPEN"],
    },
    "pylibmc": {
        "BACKEND": BACKENDS + "memcached.PyLibMCCache",
        "LOCATION": os.environ["MEMCACHED_OPEN"],
    },
}
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3"},
    "other": {"ENGINE": "django.db.backends.sqlite3"},
}
SECRET_KEY = "of tests"
USE_TZ = False
TEST_RUNNER = "runner.Runner"
