# Broker, driver and executors in one image, so that they have the same Python, packages and code: Spark refuses executors with
# others. What a container does is said by its command; compose.yaml has them all. From the top of the repository:
#   docker compose -f docker/compose.yaml up --build
# The first stage, and what it says of the base, are those of Dockerfile.
ARG PYTHON=python:3.11-slim-bookworm

FROM --platform=$BUILDPLATFORM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY diamant diamant
ARG TARGETARCH
ARG COMMIT
RUN case $TARGETARCH in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) exit 1 ;; esac \
    && echo $machine > /machine \
    && if [ -n "$COMMIT" ]; then echo "$COMMIT" > diamant/commit.txt; fi \
    && DIAMANT_TARGET=$machine-linux-gnu.2.17 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels \
        --config-settings=--build-option=--plat-name=manylinux_2_17_$machine .
# Where the image has all packages. pip takes those of the machine that _PYTHON_HOST_PLATFORM names.
RUN python -m venv --without-pip /opt/diamant
ENV INSTALL="pip --python /opt/diamant/bin/python install --no-cache-dir --no-compile"

FROM build AS packages
COPY requirements.txt requirements-spark.txt ./
RUN _PYTHON_HOST_PLATFORM=linux-$(cat /machine) $INSTALL -r requirements.txt -r requirements-spark.txt /wheels/*.whl \
    && find /opt/diamant -name tests -type d -prune -exec rm -rf {} + \
    && python -m compileall -q /opt/diamant

FROM --platform=$TARGETPLATFORM ${PYTHON}
# Spark 4 needs Java 17 or newer, whose package needs a directory that slim images may lack.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=packages /opt/diamant /opt/diamant
ENV PATH=/opt/diamant/bin:$PATH
RUN useradd --uid 10001 --no-create-home --home-dir /home/diamant --shell /usr/sbin/nologin diamant \
    && install -d -o diamant -g diamant /data /keys /staging /home/diamant

# Executors have their logs and their copies of the code in the home directory. /keys is no
# VOLUME on purpose: see Dockerfile.
ENV HOME=/home/diamant
WORKDIR /home/diamant
# A number, from which Kubernetes sees that it is not root.
USER 10001:10001
VOLUME ["/data", "/staging"]
EXPOSE 9092 7077
STOPSIGNAL SIGTERM

ARG VERSION
ARG COMMIT
LABEL org.opencontainers.image.title="Diamant with Spark" \
    org.opencontainers.image.description="A Kafka-compatible broker that forgets on time, on demand and provably, and Apache Spark" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$COMMIT"
