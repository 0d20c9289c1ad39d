# The init container's image: the static binary, its licences, and nothing else. Target `legacy` has iptables-legacy too;
# target `cni` has the CNI plugin and the node's agent.
#
#   docker buildx build --build-arg REVISION=$(git rev-parse HEAD) --platform linux/amd64,linux/arm64 -t proxy-init .
#   docker buildx build --build-arg REVISION=$(git rev-parse HEAD) --target legacy -t proxy-init:legacy .
#   docker buildx build --build-arg REVISION=$(git rev-parse HEAD) --target cni -t proxy-init-cni .
#
# REVISION is the commit, which --version names and NOTICE's offer of the source rests on.
#
# `cargo xtask release` builds the stages that need no pulled base, and names each part's licence.
#
# Bases are pinned: the tag is for people, the digest decides.

# What the labels say unless somebody says otherwise. The licence is that of each program as a whole (NOTICE).
ARG VERSION=0.2.0
ARG SOURCE=https://git.example/proxy-init
ARG LICENSES=GPL-3.0-or-later

# Debian 13 with Rust.
FROM rust:1.95.0-slim-trixie@sha256:e14e87345b4d5964ddcc3491d27ee046a0f23820f340c3c1e24da6880141f7c0 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends libcap2-bin libmnl-dev libnftnl-dev pkg-config
WORKDIR /src
COPY . .
ARG REVISION
RUN test -n "$REVISION" || { echo 'say which commit this is: --build-arg REVISION=$(git rev-parse HEAD)' >&2; exit 1; }
ENV PROXY_INIT_COMMIT=$REVISION
# The binary at the two paths that Linkerd's charts have used, with the file capabilities that its modes need.
RUN cargo xtask image --layout /out

FROM debian:13.7-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f AS legacy
RUN apt-get update && apt-get install --yes --no-install-recommends iptables && rm -rf /var/lib/apt/lists/*
ARG VERSION
ARG REVISION
ARG SOURCE
ARG LICENSES
LABEL org.opencontainers.image.title="proxy-init" \
      org.opencontainers.image.description="Redirects a pod's TCP through its sidecar proxy; with iptables-legacy" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.source=$SOURCE \
      org.opencontainers.image.licenses=$LICENSES
COPY --from=build /out/legacy/ /
# The xtables lock is in /run, which a pod mounts as an emptyDir; see deploy/pod.yaml.
USER 65534
ENTRYPOINT ["/usr/local/bin/proxy-init"]

# The CNI plugin, the node's agent, which installs it (docs/node.md), and proxy-init, which answers about the node's pods.
FROM scratch AS cni
ARG VERSION
ARG REVISION
ARG SOURCE
ARG LICENSES
LABEL org.opencontainers.image.title="proxy-init-cni" \
      org.opencontainers.image.description="linkerd-cni redirects pods' TCP without iptables; its agent installs it on nodes and heals pods" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.source=$SOURCE \
      org.opencontainers.image.licenses=$LICENSES
COPY --from=build /out/cni/ /
ENTRYPOINT ["/usr/lib/linkerd/linkerd-cni-agent"]

FROM scratch AS init
ARG VERSION
ARG REVISION
ARG SOURCE
ARG LICENSES
LABEL org.opencontainers.image.title="proxy-init" \
      org.opencontainers.image.description="Redirects a pod's TCP through its sidecar proxy in one netlink transaction" \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.source=$SOURCE \
      org.opencontainers.image.licenses=$LICENSES
COPY --from=build /out/scratch/ /
USER 65534
ENTRYPOINT ["/usr/local/bin/proxy-init"]
