# syntax=docker/dockerfile:1
#
# The command `tenure` as PID 1: it forwards signals to its command and reaps whatever that leaves behind.

FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
# Both caches outlive the layer, so that a change of ours compiles ours only.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p tenure-cli \
    && install -D target/release/tenure /out/usr/local/bin/tenure \
    && install -d -o 65532 -g 65532 -m 700 /out/var/lib/tenure

FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ /
# A number, so that orchestrators can see that it is not root.
USER 65532:65532
# In a container, loopback is seen by nobody.
ENV TENURE_HTTP_HOST=0.0.0.0
EXPOSE 3000
# Without a client in the image, the shell's own sockets ask.
HEALTHCHECK --interval=5s --timeout=3s --start-period=15s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${PORT:-3000} && printf 'GET /healthz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.. 200' <&3"]
ENTRYPOINT ["tenure"]
CMD ["run"]
