//! JSON objects, written member by member.
//!
//! Names of members are constants, and most values are numbers and words of ours: there is nothing to
//! escape in them, and looking for it took longer than a decision.

use std::borrow::Cow;

use tollgate::{Grace, Subject};

/// An object that is being written.
pub(super) struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_first: bool,
}

impl<'o> Object<'o> {
    /// Writes the object whose members `write` puts.
    pub(super) fn write(out: &'o mut Vec<u8>, write: impl FnOnce(&mut Object<'o>)) {
        out.push(b'{');
        let mut object = Object {
            out,
            is_first: true,
        };
        write(&mut object);
        object.out.push(b'}');
    }

    /// Adds a member. Its name must not need escapes.
    #[inline]
    pub(super) fn put(&mut self, name: &'static str, value: impl Value) {
        let before: &[u8] = if self.is_first { b"\"" } else { b",\"" };
        self.is_first = false;
        self.out.extend_from_slice(before);
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        value.write(self.out);
    }
}

/// What a member can be.
pub(super) trait Value {
    /// Adds it to `out`.
    fn write(self, out: &mut Vec<u8>);
}

impl Value for bool {
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self { b"true" } else { b"false" });
    }
}

impl Value for u64 {
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(itoa::Buffer::new().format(self).as_bytes());
    }
}

impl Value for &str {
    fn write(self, out: &mut Vec<u8>) {
        let is_special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
        if self.bytes().any(is_special) {
            // Text can always be written, and memory takes it.
            let _ = serde_json::to_writer(out, self);
            return;
        }
        out.push(b'"');
        out.extend_from_slice(self.as_bytes());
        out.push(b'"');
    }
}

impl Value for Cow<'_, str> {
    fn write(self, out: &mut Vec<u8>) {
        (&*self).write(out);
    }
}

impl Value for Subject {
    fn write(self, out: &mut Vec<u8>) {
        self.to_hex().as_str().write(out);
    }
}

impl Value for Grace {
    fn write(self, out: &mut Vec<u8>) {
        Object::write(out, |object| {
            object.put("limit", self.of);
            object.put("remaining", self.left);
        });
    }
}

impl<T: Value> Value for Option<T> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(out),
            None => out.extend_from_slice(b"null"),
        }
    }
}

/// A list of objects.
pub(super) struct List<I, W> {
    items: I,
    write: W,
}

impl<I: Iterator, W: Fn(I::Item, &mut Object<'_>)> List<I, W> {
    /// An object for each item, with the members that `write` puts.
    pub(super) fn new(items: I, write: W) -> List<I, W> {
        List { items, write }
    }
}

impl<I: Iterator, W: Fn(I::Item, &mut Object<'_>)> Value for List<I, W> {
    fn write(self, out: &mut Vec<u8>) {
        let List { items, write } = self;
        out.push(b'[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                out.push(b',');
            }
            Object::write(out, |object| write(item, object));
        }
        out.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(text: String, number: u64, list: Vec<String>, some: Option<bool>) {
            let mut out = Vec::new();
            Object::write(&mut out, |object| {
                object.put("text", text.as_str());
                object.put("number", number);
                object.put("list", List::new(list.iter(), |it, object| object.put("it", it.as_str())));
                object.put("some", some);
            });
            let list: Vec<_> = list.iter().map(|it| json!({ "it": it })).collect();
            let expected = json!({ "text": text, "number": number, "list": list, "some": some });
            let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn there_may_be_nothing_to_write() {
        let mut out = Vec::new();
        Object::write(&mut out, |object| {
            object.put("list", List::new([0u64; 0].into_iter(), |_, _| ()));
        });
        Object::write(&mut out, |_| ());
        assert_eq!(out, b"{\"list\":[]}{}");
    }
}
