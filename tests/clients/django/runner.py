"""Runs tests of Django, of which those in known-failures.txt have to fail."""

from pathlib import Path

from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases

# Django's own reason: these caches do not cull, servers do.
SKIPPED = "Culling isn't implemented."
# Of Django's version in sdist.txt, in the classes that scripts/clients.sh names.
TESTS = 184


def known_failures():
    for line in Path(__file__).with_name("known-failures.txt").read_text().splitlines():
        if line and not line.startswith(("#", " ")):
            yield line


class Runner(DiscoverRunner):
    def build_suite(self, *arguments, **options):
        suite = super().build_suite(*arguments, **options)
        tests = {test.id(): test for test in iter_test_cases(suite)}
        assert len(tests) == TESTS, f"{len(tests)} tests instead of {TESTS}"
        for name in known_failures():
            tests[name].__unittest_expecting_failure__ = True
        return suite

    def suite_result(self, suite, result, **options):
        skipped = [f"{test}: {why}" for test, why in result.skipped if why != SKIPPED]
        assert not skipped, skipped
        assert result.testsRun == TESTS, f"{result.testsRun} tests instead of {TESTS} were run"
        return super().suite_result(suite, result, **options)
