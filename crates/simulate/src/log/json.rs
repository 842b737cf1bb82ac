//! Lines of JSON: the fields that are wanted, read without building the whole object.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

/// The usual names of the fields that a request has: time, address, user, method, target, host, scheme, and the
/// first line of the request. Earlier names win.
const USUAL: [&[&str]; 8] = [
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
        "remote_addr",
        "client_ip",
        "clientip",
        "remote_ip",
        "clientIp",
        "ClientHost",
        "client.ip",
    ],
    &["user", "remote_user", "username", "user_id", "userId"],
    &[
        "method",
        "request_method",
        "http_method",
        "RequestMethod",
        "http.method",
        "http.request.method",
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
    ],
    &[
        "host",
        "http_host",
        "authority",
        "server_name",
        "RequestHost",
        "url.domain",
    ],
    &["scheme", "proto", "request_scheme", "url.scheme"],
    &["request", "request_line"],
];

/// Nested objects are read this deep.
const MAX_DEPTH: usize = 4;

/// The values of a line. Absent values are empty.
#[derive(Debug, Default)]
pub(super) struct Values<'l> {
    pub(super) usual: [Cow<'l, str>; 8],
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
            ranks: [usize::MAX; 8],
            values: Values::default(),
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
        if found.values.usual[0].is_empty() {
            return Err("the line has no field with a time, such as \"time\"");
        }
        Ok(found.values)
    }
}

/// The values that were found so far.
struct Found<'f, 'l> {
    fields: &'f JsonFields,
    /// How early in the list the name of each usual value is.
    ranks: [usize; 8],
    values: Values<'l>,
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
        for (place, wanted) in self.fields.mapped.iter().enumerate() {
            if wanted == name {
                self.values.mapped[place] = value.clone();
            }
        }
        for (place, names) in USUAL.iter().enumerate() {
            let rank = names.iter().position(|it| *it == name);
            if let Some(rank) = rank.filter(|rank| *rank < self.ranks[place]) {
                self.ranks[place] = rank;
                self.values.usual[place] = value.clone();
            }
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
        let text = if text == "-" { "" } else { text };
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
