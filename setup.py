"""Lists the packages; everything else is in pyproject.toml.

The folders impls, suites and reports are imported as ssmperf.impls, ssmperf.suites and ssmperf.reports.
find_packages sees every sub-folder, so a new one cannot be missing from a wheel.
"""

from setuptools import find_packages, setup

ROOMS = ("impls", "suites", "reports")

packages = find_packages(include=["ssmperf", "ssmperf.*"])
for room in ROOMS:
    packages.append(f"ssmperf.{room}")
    packages += [f"ssmperf.{room}.{name}" for name in find_packages(room)]

setup(
    packages=packages,
    package_dir={"ssmperf": "ssmperf"} | {f"ssmperf.{room}": room for room in ROOMS},
    package_data={
        "ssmperf": ["py.typed", "authors/starter/files/*"],
        "ssmperf.impls": ["*/_cuda/*.cu*", "_triton/*.c"],
        "ssmperf.suites": ["workloads/*.toml"],
        "ssmperf.reports": ["pages/templates/*"],
    },
    include_package_data=False,  # package_data is the whole list
)
