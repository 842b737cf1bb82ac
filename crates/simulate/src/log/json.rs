//! Lines of JSON: the fields that are wanted, read without building the whole object.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::time::{self, Stamp};

/// How many values have usual names.
const VALUES: usize = 10;
/// The places of the time and of the scheme in the list below.
const TIME: usize = 0;
const SCHEME: usize = 6;

/// The usual names of the fields that a request has: time, address, user, method, target, host, scheme, the first
/// line of the request, tenant and plan. Earlier names win.
const USUAL: [&[&str]; VALUES] = [
    &[
        "time",
        "timestamp",
        "@timestamp",
        "ts",
        "start_time",
        "time_iso8601",
        "time_local",
        "msec",
        "date",
    ],
    &[
        "ip",
        "client",
        "client_ip",
        "clientip",
        "clientIp",
        "client.ip",
        "request.client_ip",
        "downstream_remote_address",
        "remote_addr",
        "remote_ip",
        "request.remote_ip",
        "ClientHost",
        "x_forwarded_for",
    ],
    &["user", "remote_user", "username", "user_id", "userId"],
    &[
        "method",
        "request_method",
        "http_method",
        "RequestMethod",
        "http.method",
        "http.request.method",
        "request.method",
    ],
    &[
        "path",
        "uri",
        "request_uri",
        "url",
        "RequestPath",
        "request_path",
        "http.path",
        "url.path",
        "request.uri",
    ],
    &[
        "host",
        "http_host",
        "authority",
        "server_name",
        "RequestHost",
        "url.domain",
        "request.host",
    ],
    &["scheme", "proto", "request_scheme", "url.scheme"],
    &["request", "request_line"],
    &["tenant"],
    &["plan"],
];

/// Nested objects are read this deep.
const MAX_DEPTH: usize = 4;

/// The values of a line. Absent values are empty.
#[derive(Debug, Default)]
pub(super) struct Values<'l> {
    pub(super) stamp: Option<Stamp>,
    pub(super) usual: [Cow<'l, str>; VALUES],
    pub(super) mapped: SmallVec<[Cow<'l, str>; 4]>,
}

/// The fields that are wanted.
#[derive(Debug)]
pub(super) struct JsonFields {
    mapped: Vec<String>,
}

impl JsonFields {
    pub(super) fn new(names: &[&str]) -> JsonFields {
        let mapped = names.iter().map(|name| (*name).to_owned()).collect();
        JsonFields { mapped }
    }

    /// Reads a line.
    pub(super) fn read<'l>(&self, line: &'l str) -> Result<Values<'l>, &'static str> {
        let mut found = Found {
            fields: self,
            ranks: [usize::MAX; VALUES],
            values: Values::default(),
            has_time: false,
        };
        found
            .values
            .mapped
            .resize(self.mapped.len(), Cow::default());
        let mut json = serde_json::Deserializer::from_str(line);
        let object = Object {
            found: &mut found,
            prefix: "",
            depth: 0,
        };
        let read = object.deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|_| "the line is not a JSON object")?;
        match (found.values.stamp, found.has_time) {
            (Some(_), _) => Ok(found.values),
            (None, true) => Err("no time of the line can be read"),
            (None, false) => Err("the line has no field with a time, such as \"time\""),
        }
    }
}

/// The values that were found so far.
struct Found<'f, 'l> {
    fields: &'f JsonFields,
    /// For each usual value, the place of the found name in the list of its names.
    ranks: [usize; VALUES],
    values: Values<'l>,
    /// Whether a field has the name of a time.
    has_time: bool,
}

impl<'l> Found<'_, 'l> {
    /// Whether a field is wanted.
    fn wants(&self, name: &str) -> bool {
        self.fields.mapped.iter().any(|it| it == name)
            || USUAL.iter().any(|names| names.contains(&name))
    }

    /// Whether a field below `name` may be wanted.
    fn wants_below(&self, name: &str) -> bool {
        let below = |wanted: &str| {
            wanted
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        self.fields.mapped.iter().any(|it| below(it))
            || USUAL.iter().any(|names| names.iter().any(|it| below(it)))
    }

    #[allow(clippy::ptr_arg)] // A borrowed value stays borrowed.
    fn keep(&mut self, name: &str, value: &Cow<'l, str>) {
        // An absent value leaves its place to a later name.
        if value.is_empty() || value == "-" {
            return;
        }
        for (place, wanted) in self.fields.mapped.iter().enumerate() {
            if wanted == name {
                self.values.mapped[place] = value.clone();
            }
        }
        for (place, names) in USUAL.iter().enumerate() {
            let rank = names.iter().position(|it| *it == name);
            let Some(rank) = rank.filter(|rank| *rank < self.ranks[place]) else {
                continue;
            };
            if place == TIME {
                self.has_time = true;
                // A duration has the name of a time in some logs.
                let Some(stamp) = time::any(value) else {
                    continue;
                };
                self.values.stamp = Some(stamp);
            }
            // `proto` is `https` in some logs, and `HTTP/1.1` in others.
            if place == SCHEME && value.contains('/') {
                continue;
            }
            self.ranks[place] = rank;
            self.values.usual[place] = value.clone();
        }
    }
}

/// Reads an object, and keeps the fields that are wanted. Their names start with `prefix`.
struct Object<'o, 'f, 'l> {
    found: &'o mut Found<'f, 'l>,
    prefix: &'o str,
    depth: usize,
}

impl<'l> DeserializeSeed<'l> for Object<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'l> Visitor<'l> for Object<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key_seed(KeySeed)? {
            let name: Cow<'_, str> = match self.prefix {
                "" => key,
                prefix => format!("{prefix}.{key}").into(),
            };
            if self.found.wants(&name) || (self.depth < MAX_DEPTH && self.found.wants_below(&name))
            {
                map.next_value_seed(Wanted {
                    found: self.found,
                    name: &name,
                    depth: self.depth,
                })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The name of a field, borrowed from the line where it can be.
struct Key<'l>(Cow<'l, str>);
struct KeySeed;

impl<'l> DeserializeSeed<'l> for KeySeed {
    type Value = Key<'l>;

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<Key<'l>, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'l> Visitor<'l> for KeySeed {
    type Value = Key<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<Key<'l>, E> {
        Ok(Key(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Key<'l>, E> {
        Ok(Key(text.to_owned().into()))
    }
}

/// Reads the value of a field that is wanted, or of an object with such fields.
struct Wanted<'o, 'f, 'l> {
    found: &'o mut Found<'f, 'l>,
    name: &'o str,
    depth: usize,
}

impl<'l> DeserializeSeed<'l> for Wanted<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for Wanted<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<(), E> {
        self.found.keep(self.name, &text.into());
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.found.keep(self.name, &text.to_owned().into());
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.found.keep(self.name, &number.to_string().into());
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.found.keep(self.name, &number.to_string().into());
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.found.keep(self.name, &number.to_string().into());
        Ok(())
    }

    fn visit_bool<E>(self, flag: bool) -> Result<(), E> {
        self.found.keep(self.name, &flag.to_string().into());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'l>>(self, map: A) -> Result<(), A::Error> {
        Object {
            found: self.found,
            prefix: self.name,
            depth: self.depth + 1,
        }
        .visit_map(map)
    }
}
