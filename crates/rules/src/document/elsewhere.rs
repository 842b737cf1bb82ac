//! Names that people bring from articles and other rate limiters, and the words for them here.
//!
//! The tables are looked up only when a name is unknown. A name is compared without case, `_` and `-`,
//! so `shadowMode`, `shadow_mode` and `shadow-mode` are one name.

/// Names, separated by spaces, and the remedy for each of them.
type Table = &'static [(&'static str, &'static str)];

const STATE: &str = "write `state: enforce`, `state: shadow` or `state: disabled` in the rule";
const SHADOW: &str = "write `state: shadow` in the rule: it counts, and denies nothing";
const FAILURE: &str =
    "write `on_store_failure: fail-open` or `on_store_failure: fail-closed` in the rule";
const REDIS: &str = "write `store: { redis: { url: redis://localhost:6379 } }`";
const NUMBERS: &str =
    "write `limit: 100` and `window: 1m`, or `rate: 100/s`, as the algorithm needs";
const STATE_NAMES: &str = "enabled enable disabled disable active isenabled";
const SHADOW_NAMES: &str =
    "shadow shadowmode dryrun logonly reportonly monitor monitoronly observe";
const FAILURE_NAMES: &str = "failurepolicy failuremode failuremodedeny failuremodeallow failopen failclosed failmode \
     failpolicy onfailure onerror onrediserror onstoreerror fallback errorpolicy";
const REDIS_NAMES: &str = "redis redishost redisport redisurl redisuri redisaddress redisaddr redisnodes redispassword \
     storage backend datastore database cache";

/// The fields of a rule, a budget, or numbers of a plan.
const RULE: Table = &[
    (STATE_NAMES, STATE),
    (SHADOW_NAMES, SHADOW),
    (FAILURE_NAMES, FAILURE),
    (
        REDIS_NAMES,
        "the `store` of the config keeps the state of all rules",
    ),
    (
        "cachedquota localcache quotacache localquota",
        "to decide without the store write `on_store_failure: cached` in the rule; `denial_cache` of the \
         store remembers denials",
    ),
    (
        "refillpersecond refillrate refillrateper refilltokens refillinterval refillamount \
         refillperiod tokenspersecond fillrate replenishrate replenishment leakrate drainrate \
         fillinterval tokensperfill",
        "write how fast units return as a rate: `refill: 10/s` for token-bucket, `rate: 10/s` for gcra \
         and leaky-bucket",
    ),
    (
        "burstcapacity burstsize bucketsize bucketcapacity maxtokens maxburst tokens",
        "write `capacity: 100` for token-bucket, `burst: 100` for gcra",
    ),
    (
        "queuesize queuelength maxqueue nodelay",
        "write `queue: 100` for leaky-bucket, with `shape: true` if requests wait for their turn",
    ),
    (
        "costexpression costexpr costs hitsaddend weight requestedtokens points units \
         tokensperrequest incrementby",
        "write `cost`: a number, a CEL expression, or a table",
    ),
    (
        "scope key keys keyby groupby dimension dimensions subject subjects partitionby \
         identifier limitby keyresolver keyexpression keygenerator variables remoteaddress perip \
         peruser by",
        "write `per: [tenant]`: the names of the attributes whose values have an allowance each",
    ),
    (
        "requestsperunit requestspersecond requestsperminute requestsperhour rps rpm qps \
         maxrequests maxvalue maxhits requests count threshold max quota limitforperiod permits \
         average requestsperperiod",
        NUMBERS,
    ),
    (
        "unit seconds interval duration windowseconds windowsize windowms windowsec windowlength \
         windowduration timewindow timeunit limitrefreshperiod periodseconds resetinterval",
        "write `window: 1m`; for calendar days or months write `algorithm: quota` with `period: day`",
    ),
    (
        "conditions condition descriptors descriptor filter filters matches matchers path paths \
         method methods route routes endpoint endpoints action actions uri url pattern",
        "write `match: { action: search }`, or a CEL expression as `when`",
    ),
    (
        "name ruleid rulename rule",
        "write `id`: the name of the rule, unique and stable",
    ),
    (
        "type strategy algo limiter limittype policy",
        "write `algorithm`, such as gcra, token-bucket or quota",
    ),
    (
        "blockduration blockfor bantime ban block penaltytime cooldown lockout",
        "write `backoff: { base: 1m }`: each further denial blocks the subject for longer",
    ),
    (
        "delay tarpit throttledelay denydelay responsedelay",
        "write `delay_denials: 500ms`",
    ),
    (
        "response responsebody body errorbody rejectedbody errortemplate errormessage \
         rejectionmessage denymessage",
        "write `message` for the text of a denial, or `denial_body` for its whole body",
    ),
    (
        "maxconcurrent maxconcurrency maxinflight concurrent maxparallel slots",
        "write `algorithm: concurrency` with `limit: 5`",
    ),
    (
        "timeout leaseseconds leasetime ttl",
        "write `lease: 30s` for concurrency; `timeout` of the store bounds a decision",
    ),
    (
        "sync distributed global local consistency syncrate leased async",
        "all instances with the same Redis count together, and by default every check is exact; to call Redis \
         less often write `mode: leased` or `mode: async`",
    ),
    (
        "priority order precedence",
        "remove it: all rules that match a request apply",
    ),
    (
        "description comment labels tags metadata",
        "write a YAML comment after #",
    ),
];

/// The fields of a whole config.
const CONFIG: Table = &[
    (STATE_NAMES, STATE),
    (SHADOW_NAMES, SHADOW),
    (FAILURE_NAMES, FAILURE),
    (REDIS_NAMES, REDIS),
    (
        "limits ratelimits ratelimit policies quotas ratelimitrules limiters",
        "write `rules`: a list, each with an `id`, an `algorithm` and its numbers",
    ),
    (
        "domain descriptors",
        "a config of Envoy's rate limit service is converted by `tollgate import envoy-ratelimit FILE`",
    ),
    (
        "port listen bind host address addr http grpc resp admin doors",
        "write `server: { http: 127.0.0.1:8080 }`",
    ),
    (
        "log logging logs tracing traces otel opentelemetry",
        "write `telemetry`",
    ),
    (
        "metrics prometheus",
        "remove it: the HTTP door always serves /metrics",
    ),
    (
        "scope key keys costexpression algorithm limit window rate burst",
        "write it in a rule, below `rules`",
    ),
    (
        "cachedquota",
        "the store's `denial_cache` remembers denials; a rule may have `on_store_failure: cached`",
    ),
    ("customers accounts users", "write `tenants`"),
    ("tiers subscriptions", "write `plans`"),
];

const STORE: Table = &[
    (FAILURE_NAMES, FAILURE),
    (REDIS_NAMES, REDIS),
    (
        "type kind url uri host port address mode cluster sentinel",
        REDIS,
    ),
];

const REDIS_FIELDS: Table = &[
    (FAILURE_NAMES, FAILURE),
    (
        "host hosts hostname port address addresses addr addrs node nodes endpoint endpoints uri \
         redishost redisport redisurl server servers",
        "write `url: redis://localhost:6379`, or several as `urls`",
    ),
    (
        "db database dbindex index",
        "name the database in the URL: redis://localhost:6379/1",
    ),
    (
        "poolsize pool maxpoolsize connections maxconns maxactive maxtotal maxidle \
         connectionpoolsize poolmax",
        "write `max_connections`",
    ),
    (
        "tls ssl usetls usessl sslenabled secure",
        "write rediss:// in the URL; `tls_ca` names authorities to trust",
    ),
    (
        "master mastername sentinelmastername masterset",
        "write `sentinel_master`",
    ),
    ("user login auth", "write `username` and `password`"),
    (
        "sockettimeout readtimeout writetimeout commandtimeout timeoutms operationtimeout",
        "write `timeout`: how long a decision waits for the store in total",
    ),
    (
        "connecttimeoutms dialtimeout connectiontimeout",
        "write `connect_timeout`",
    ),
    ("prefix keynamespace keysprefix", "write `key_prefix`"),
    (
        "cluster clustermode sentinel topology",
        "write `mode: cluster` or `mode: sentinel`",
    ),
    ("pipelining pipeline batchsize maxbatch", "write `batch`"),
];

/// The words for algorithms, states and failure policies.
const ALGORITHMS: Table = &[
    (
        "slidingwindowlog slidingwindowlogs slidinglogs slidingwindow rollingwindow log \
         exactwindow",
        "write `sliding-log` (exact), or `sliding-counter` (in parts, with less memory)",
    ),
    (
        "slidingwindowcounter slidingwindowcounters slidingcounters approximatedslidingwindow \
         approximatesliding weightedwindow",
        "write `sliding-counter`, with `estimate: two-window` for the estimate from two windows",
    ),
    (
        "fixed fixedwindowcounter fixedcounter window counter simple",
        "write `fixed-window`",
    ),
    (
        "bucket tokens tokenbuckets classictokenbucket",
        "write `token-bucket`",
    ),
    (
        "leaky leakybucketqueue leakybucketmeter shaping queue",
        "write `leaky-bucket`; with `shape: true` requests wait for their turn",
    ),
    (
        "genericcellrate genericcellratealgorithm cell throttle rediscell",
        "write `gcra`",
    ),
    (
        "concurrent semaphore inflight concurrencylimit parallel",
        "write `concurrency`",
    ),
    (
        "daily monthly calendar periodic budget",
        "write `quota` with `period: day` or `period: month`",
    ),
];

const STATES: Table = &[
    ("on true active enabled enforcing live", "write `enforce`"),
    ("off false inactive none disable", "write `disabled`"),
    (
        "dryrun logonly report reportonly monitor observe shadowmode audit",
        "write `shadow`",
    ),
];

const POLICIES: Table = &[
    (
        "open allow pass permit ignore failureallow",
        "write `fail-open`",
    ),
    (
        "closed close deny block reject error failuredeny",
        "write `fail-closed`",
    ),
    (
        "local memory inmemory fallback localmemory",
        "write `local-fallback`",
    ),
    ("cache cachedquota lastknown stale", "write `cached`"),
];

/// Returns the remedy for a field of another rate limiter. `section` is what messages call the map.
pub(super) fn field(section: &str, name: &str) -> Option<&'static str> {
    let table = match section {
        "a rule" | "a budget" | "numbers" => RULE,
        "a config" | "a policy" => CONFIG,
        "`store`" => STORE,
        "`redis`" => REDIS_FIELDS,
        _ => return None,
    };
    find(table, name)
}

/// Returns the remedy for a word of another rate limiter. `what` is what messages call the choice.
pub(super) fn word(what: &str, name: &str) -> Option<&'static str> {
    let table = match what {
        "an algorithm" => ALGORITHMS,
        "a state" => STATES,
        "a failure policy" => POLICIES,
        _ => return None,
    };
    find(table, name)
}

fn find(table: Table, name: &str) -> Option<&'static str> {
    // A long name is not in a table, and need not be copied.
    if name.len() > 64 {
        return None;
    }
    let kept = name.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
    let plain: String = kept.collect::<String>().to_lowercase();
    let mut rows = table.iter();
    rows.find_map(|(names, help)| {
        let mut names = names.split_whitespace();
        names.any(|name| name == plain).then_some(*help)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_separators() {
        for name in ["shadowMode", "shadow_mode", "shadow-mode", "SHADOW MODE"] {
            assert_eq!(field("a rule", name), Some(SHADOW), "{name}");
        }
        assert_eq!(field("a rule", "colour"), None);
        assert_eq!(field("`tls`", "enabled"), None);
        assert_eq!(field("a rule", &"x".repeat(1000)), None);
        let word = word("an algorithm", "sliding-window-log");
        assert!(word.unwrap().contains("`sliding-log`"));
    }

    #[test]
    fn names_of_the_tables_are_plain_and_have_one_remedy() {
        for table in [
            RULE,
            CONFIG,
            STORE,
            REDIS_FIELDS,
            ALGORITHMS,
            STATES,
            POLICIES,
        ] {
            let mut seen = std::collections::HashSet::new();
            for name in table.iter().flat_map(|(names, _)| names.split_whitespace()) {
                let plain = name.bytes().all(|byte| byte.is_ascii_lowercase());
                assert!(plain, "{name}");
                // A later row with the same name would never be found.
                assert!(seen.insert(name), "{name} is listed twice");
            }
        }
    }
}
