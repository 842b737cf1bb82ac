//! What a config says of requests, as it is written: who asks, and what for.

use crate::client::ClientHeader;
use crate::read::section;
use crate::values::{List, OneOrMany, Percent, Text, TextOrOff, Whole};

section! {
    /// Who is who.
    struct RawSubjects is "`subjects`" {
        /// The secret that subjects are hashed with, at least 16 bytes. `${VAR}` reads the environment.
        hash_secret: Text = "hash_secret",
        /// Networks whose word on clients is believed: forwarded addresses, and who is authenticated.
        trusted_proxies: List<Text> = "trusted_proxies",
        /// The header in which trusted proxies name the client's address. Unless given: the first of the three that is there.
        client_header: ClientHeader = "client_header",
        /// Where HTTP doors find who asks.
        headers: RawSubjectHeaders = "headers",
        /// Networks whose clients carry the attribute traffic = internal.
        internal: List<Text> = "internal",
        /// A request with this header, from a trusted proxy, carries the attribute traffic = test.
        test_header: Text = "test_header",
        /// How many leading bits of an IPv6 address make one subject.
        ipv6_prefix: Whole = "ipv6_prefix",
        /// How many subjects are kept at most.
        max_keys: Whole = "max_keys",
    }
}

section! {
    /// The headers that say who asks, each a name or off.
    struct RawSubjectHeaders is "`headers`" {
        /// The API key: x-api-key unless given.
        api_key: TextOrOff = "api_key",
        /// The user, believed from trusted proxies: x-user-id unless given.
        user: TextOrOff = "user",
        /// The service account, believed from trusted proxies: x-service-account unless given.
        service_account: TextOrOff = "service_account",
        /// The tenant, believed from trusted proxies: x-tenant-id unless given.
        tenant: TextOrOff = "tenant",
    }
}

section! {
    /// A route of forward-auth: which requests, and which action they are. All conditions must hold.
    struct RawRoute is "a route" {
        /// Methods, such as GET or [GET, HEAD]. Any unless given.
        method: OneOrMany = "method",
        /// Hosts without their ports, as globs. Any unless given.
        host: OneOrMany = "host",
        /// Paths without their queries, as globs. Any unless given.
        path: OneOrMany = "path",
        /// What the attribute action becomes.
        action (required): Text = "action",
    }
}

section! {
    /// What a server tells of itself.
    struct RawTelemetry is "`telemetry`" {
        /// Where traces are sent, a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; off unless given. `${VAR}` reads the environment.
        otlp: Text = "otlp",
        /// How many decisions are traced that belong to no trace yet, up to 100%: 1% unless given. Those of a trace go by what is sampled there.
        sample: Percent = "sample",
        /// How many refusals are logged in a second at most, up to 10000: 10 unless given; 0 logs none.
        rejections_per_second: Whole = "rejections_per_second",
    }
}
