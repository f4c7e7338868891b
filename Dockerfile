# No image was built from this file yet, because Docker was not available. hadolint finds no fault.
#
# Build an image in a clone, for a machine with a GPU (first line) or without (second line). Then
# run a command in a folder that contains photos/. The results go to runs/ in the same folder.
#
#     docker build --tag ssl-vit .
#     docker build --tag ssl-vit --build-arg UV_TORCH_BACKEND=cpu .
#
#     docker run --rm --gpus all --ipc=host --user "$(id -u):$(id -g)" --volume "$PWD:/data" \
#         ssl-vit pretrain recipe=mae data.path=photos
#
# Without a GPU, leave out `--gpus all`. --ipc=host gives data workers shared memory, of which a
# container has only 64 MB. --user lets you own the results.

FROM python:3.12.12-slim-trixie AS build
# read by uv: "cpu" installs builds of torch without CUDA
ARG UV_TORCH_BACKEND
ENV UV_NO_CACHE=1 VIRTUAL_ENV=/opt/ssl-vit
WORKDIR /source
RUN pip install --no-cache-dir uv==0.13.9 && python -m venv --without-pip /opt/ssl-vit
# dependencies first: this layer is kept if only the code of ssl_vit changes
COPY pyproject.toml ./
RUN uv pip install -r pyproject.toml --extra figures
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . && uv pip install --no-deps /wheels/*.whl

FROM python:3.12.12-slim-trixie
# gcc: torch.compile needs a C compiler on a GPU. Debian removes old versions, so none is pinned
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ssl-vit \
    && mkdir /data \
    && chown 1000 /data \
    && chmod 777 /home/ssl-vit
COPY --from=build /opt/ssl-vit /opt/ssl-vit
# HOME and USER also serve a user of --user=, who has no name in the image
ENV PATH=/opt/ssl-vit/bin:$PATH HOME=/home/ssl-vit USER=ssl-vit
USER 1000
# the images and the folder runs/
VOLUME /data
WORKDIR /data
ENTRYPOINT ["ssl-vit"]
CMD ["--help"]
