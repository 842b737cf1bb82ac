//! How ids and times are written in the JSON of the spill file.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use tollgate_core::Time;

/// 128 bits as 32 hexadecimal digits: JSON numbers are too small.
pub(crate) mod hex {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bits: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{bits:032x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let digits = Cow::<str>::deserialize(from)?;
        u128::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}

/// A time as microseconds since 1970.
pub(crate) mod micros {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_micros())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        u64::deserialize(from).map(Time::from_micros)
    }
}
