"""The proxy in front of the gateways: one set of values, from which Envoy's and nginx's configurations are made.

Pure: values in, text out. `settings` says what can be chosen and derives the rest, `answers` what the proxy says
itself, `envoy` and `nginx` write it down. docs/front.md tells why each setting is there.
"""
