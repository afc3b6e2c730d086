# syntax=docker/dockerfile:1
#
# An image that holds a release and nothing else, to be copied from:
#
#   COPY --from=IMAGE /usr/local/lib/parcagpu /usr/local/lib/parcagpu
#   ENTRYPOINT ["/usr/local/lib/parcagpu/parcagpu-entrypoint.sh"]
#
# docker/example is an application image made so. To build this one:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg GUM_DOWNLOAD=1 -t IMAGE .
#
# GUM_DOWNLOAD=1 fetches the devkits of the hook engine Gum; --build-context devkit=DIR gives those of DIR/amd64
# and DIR/arm64 instead, and with neither the release is built without Gum.

ARG RUST_VERSION=1.95

# Stands for the build context of that name where none is given.
FROM scratch AS devkit
COPY LICENSE /

# Compiles for the other architecture instead of emulating it.
FROM --platform=$BUILDPLATFORM rust:${RUST_VERSION}-bookworm AS build
ARG TARGETARCH
ARG GUM_DOWNLOAD=
WORKDIR /src
COPY . .
RUN --mount=type=bind,from=devkit,target=/devkit \
    if [ -e "/devkit/$TARGETARCH" ] || [ -e /devkit/libfrida-gum.a ]; then export FRIDA_GUM_DEVKIT=/devkit; fi; \
    scripts/build-release ${GUM_DOWNLOAD:+--gum-download} "$TARGETARCH" \
    && mv "target/dist/$TARGETARCH" /parcagpu

FROM scratch
COPY --from=build /parcagpu /usr/local/lib/parcagpu
