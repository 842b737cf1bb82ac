//! The types of expressions, and the operands of operators and functions.

use std::fmt;

/// A type, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    List(Box<Ty>),
    Map(Box<Ty>, Box<Ty>),
    /// A network of addresses.
    Network,
    /// Not known before evaluation.
    Any,
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ty::Bool => "a bool",
            Ty::Int => "an int",
            Ty::Uint => "a uint",
            Ty::Double => "a double",
            Ty::String => "a string",
            Ty::Bytes => "bytes",
            Ty::Null => "null",
            Ty::List(_) => "a list",
            Ty::Map(..) => "a map",
            Ty::Network => "a network",
            Ty::Any => "anything",
        })
    }
}

impl Ty {
    pub(crate) fn list(element: Ty) -> Ty {
        Ty::List(Box::new(element))
    }

    pub(crate) fn map(key: Ty, value: Ty) -> Ty {
        Ty::Map(Box::new(key), Box::new(value))
    }

    /// Whether a value of this type may also be of type `other`.
    pub(crate) fn may_be(&self, other: &Ty) -> bool {
        match (self, other) {
            (Ty::Any, _) | (_, Ty::Any) => true,
            (Ty::List(a), Ty::List(b)) => a.may_be(b),
            (Ty::Map(a, b), Ty::Map(c, d)) => a.may_be(c) && b.may_be(d),
            _ => self == other,
        }
    }

    /// Whether `==` can ever be true for values of the two types.
    pub(crate) fn may_equal(&self, other: &Ty) -> bool {
        self.may_be(other) || (self.is_number() && other.is_number())
    }

    /// Whether `<` can compare values of the two types.
    pub(crate) fn may_order(&self, other: &Ty) -> bool {
        let ordered =
            |ty: &Ty| ty.is_number() || matches!(ty, Ty::Bool | Ty::String | Ty::Bytes | Ty::Any);
        ordered(self) && ordered(other) && self.may_equal(other)
    }

    fn is_number(&self) -> bool {
        matches!(self, Ty::Int | Ty::Uint | Ty::Double)
    }

    /// Returns the type of a value that has one of the two types.
    pub(crate) fn join(self, other: Ty) -> Ty {
        match (self, other) {
            (a, b) if a == b => a,
            (Ty::List(a), Ty::List(b)) => Ty::list(a.join(*b)),
            (Ty::Map(a, b), Ty::Map(c, d)) => Ty::map(a.join(*c), b.join(*d)),
            _ => Ty::Any,
        }
    }
}

/// Returns the type that an arithmetic operator yields, or `None` if it does not take these operands.
pub(crate) fn arithmetic(operator: &str, left: &Ty, right: &Ty) -> Option<Ty> {
    let takes = |ty: &Ty| match operator {
        "+" => matches!(
            ty,
            Ty::Int | Ty::Uint | Ty::Double | Ty::String | Ty::Bytes | Ty::List(_)
        ),
        "%" => matches!(ty, Ty::Int | Ty::Uint),
        _ => ty.is_number(),
    };
    match (left, right) {
        (Ty::Any, Ty::Any) => Some(Ty::Any),
        (Ty::Any, known) | (known, Ty::Any) => takes(known).then(|| known.clone()),
        (Ty::List(a), Ty::List(b)) if operator == "+" => {
            // The element type of an empty list is not known, so the other list decides.
            Some(match (&**a, &**b) {
                (Ty::Any, known) | (known, Ty::Any) => Ty::list(known.clone()),
                (a, b) => Ty::list(a.clone().join(b.clone())),
            })
        }
        _ => (left == right && takes(left)).then(|| left.clone()),
    }
}

/// A function of the language.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Whether the function is called on a value, as in `x.f(y)`, or as `f(x, y)`.
    pub(crate) member: bool,
    pub(crate) arguments: &'static [Argument],
    pub(crate) result: Ty,
    pub(crate) usage: &'static str,
}

/// The type of an argument.
pub(crate) enum Argument {
    String,
    Sized,
    /// A number, or text that contains one.
    Number,
    Printable,
    BoolOrString,
    StringOrBytes,
    Anything,
}

impl Argument {
    pub(crate) fn takes(&self, ty: &Ty) -> bool {
        let number = ty.is_number();
        match (self, ty) {
            (_, Ty::Any) | (Argument::Anything, _) => true,
            (Argument::String, ty) => *ty == Ty::String,
            (Argument::Sized, ty) => {
                matches!(ty, Ty::String | Ty::Bytes | Ty::List(_) | Ty::Map(..))
            }
            (Argument::Number, ty) => number || *ty == Ty::String,
            (Argument::Printable, ty) => number || matches!(ty, Ty::String | Ty::Bytes | Ty::Bool),
            (Argument::BoolOrString, ty) => matches!(ty, Ty::Bool | Ty::String),
            (Argument::StringOrBytes, ty) => matches!(ty, Ty::String | Ty::Bytes),
        }
    }
}

macro_rules! functions {
    ($( $kind:ident $name:literal ($($argument:ident),*) -> $result:ident, $usage:literal; )+) => {
        &[$( Function {
            name: $name,
            member: functions!(@$kind),
            arguments: &[$(Argument::$argument),*],
            result: Ty::$result,
            usage: $usage,
        } ),+]
    };
    (@member) => { true };
    (@global) => { false };
}

/// All functions. The first argument of a member function is the value that it is called on.
pub(crate) const FUNCTIONS: &[Function] = functions! {
    member "contains" (String, String) -> Bool, "path.contains(\"/admin\")";
    member "startsWith" (String, String) -> Bool, "path.startsWith(\"/v1/\")";
    member "endsWith" (String, String) -> Bool, "path.endsWith(\".png\")";
    member "size" (Sized) -> Int, "name.size()";
    global "size" (Sized) -> Int, "size(name)";
    global "int" (Number) -> Int, "int(tokens)";
    global "uint" (Number) -> Uint, "uint(tokens)";
    global "double" (Number) -> Double, "double(score)";
    global "string" (Printable) -> String, "string(3)";
    global "bool" (BoolOrString) -> Bool, "bool(premium)";
    global "bytes" (StringOrBytes) -> Bytes, "bytes(name)";
    global "cidr" (String) -> Network, "ip in cidr(\"10.0.0.0/8\")";
    global "dyn" (Anything) -> Any, "dyn(name)";
};

/// The macros of the language that are called on a value. A macro reaches the checker as a call only if
/// its arguments are wrong.
pub(crate) const MACROS: &[(&str, &str)] = &[
    ("all", "[\"a\", \"b\"].all(x, x != tenant)"),
    ("exists", "[\"a\", \"b\"].exists(x, path.startsWith(x))"),
    ("exists_one", "[\"a\", \"b\"].exists_one(x, x == tenant)"),
    ("map", "[\"a\", \"b\"].map(x, size(x))"),
    ("filter", "[\"a\", \"b\"].filter(x, x != tenant)"),
    ("has", "has(attributes.tenant)"),
];
