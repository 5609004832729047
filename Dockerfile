# danalab in a container: for CPUs, or for CUDA by a build argument.
#
#   docker build -t danalab .
#   docker build -t danalab:cuda --build-arg TORCH=cu128 .
#   docker run --rm -v "$PWD:/work" danalab speedrun
#   docker run --rm -p 8000:8000 -v "$PWD:/work" danalab serve speedrun/rl --host 0.0.0.0 --api-key secret
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" danalab:cuda train --data datasets/text
FROM python:3.12-slim
ARG TORCH=cpu
ARG EXTRAS=serve,data,hf,track

# The kernels for CPUs and torch.compile need a compiler when they first run.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/${TORCH}

COPY pyproject.toml README.md LICENSE /opt/danalab/
COPY src /opt/danalab/src
RUN pip install --no-cache-dir "/opt/danalab[${EXTRAS}]"

WORKDIR /work
ENTRYPOINT ["danalab"]
CMD ["--help"]
