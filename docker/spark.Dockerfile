# Broker, driver and executors in one image, so that they have the same Python, packages and code: Spark refuses executors with
# others. What a container does is said by its command; compose.yaml has them all. From the top of the repository:
#   docker compose -f docker/compose.yaml up --build
FROM python:3.11-slim-bookworm

# Spark 4 needs Java 17 or newer.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/diamant
COPY requirements.txt requirements-spark.txt ./
RUN pip install --no-cache-dir -r requirements.txt -r requirements-spark.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY diamant diamant
RUN pip install --no-cache-dir '.[spark]' \
    && useradd --system --uid 10001 --home-dir /home/diamant --shell /usr/sbin/nologin diamant \
    && install -d -o diamant -g diamant /data /keys /staging /home/diamant

# Executors have their logs and their copies of the code in the home directory. /keys is no
# VOLUME on purpose: see Dockerfile.
ENV HOME=/home/diamant
USER diamant
VOLUME ["/data", "/staging"]
EXPOSE 9092 7077
STOPSIGNAL SIGTERM
