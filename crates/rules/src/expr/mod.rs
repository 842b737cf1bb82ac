//! CEL expressions: `when` and `cost`.
//!
//! Attributes are text unless the policy declares them as a number or a bool. A top-level name is an
//! attribute; `attributes` is the map of all attributes. An expression is parsed and type-checked once,
//! when the policy is read ([`compile`]).
//!
//! For a request an expression can fail in two ways. Either the request lacks an attribute
//! ([`Failure::Missing`]), or the expression fails on the request's values ([`Failure::Broken`]).

mod bound;
mod check;
mod eval;
mod network;
mod operators;
mod types;

use std::collections::HashMap;
use std::ops::Range;

use cel::Program;

pub(crate) use eval::Failure;

use types::Ty;

use crate::raw::AttributeType;

/// The types of attributes that are not text.
pub(crate) type Declared = HashMap<String, AttributeType>;

/// Longer expressions are rejected. The remedy is to compute an attribute in the caller.
const MAX_BYTES: usize = 2048;
/// Enough stack for the longest expression, even in an unoptimised build.
const PARSER_STACK: usize = 64 * 1024 * 1024;
/// The deepest nesting of brackets.
const MAX_BRACKETS: usize = 24;

/// The type that an expression must yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Bool,
    Int,
}

/// A parsed and type-checked expression.
#[derive(Debug)]
pub(crate) struct Expr {
    program: Program,
    text: String,
    /// The attributes that the expression reads by name.
    names: Vec<String>,
    /// The declared type of each name; `None` for text.
    types: Vec<Option<AttributeType>>,
    /// Whether the expression reads the map of all attributes.
    reads_map: bool,
    /// The attributes that the expression reads without asking whether the request has them.
    needs: Vec<String>,
}

/// A fault of an expression, and its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) range: Option<Range<usize>>,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl Fault {
    fn whole(message: impl Into<String>, help: impl Into<String>) -> Vec<Fault> {
        vec![Fault {
            range: None,
            message: message.into(),
            help: help.into(),
        }]
    }
}

/// Parses and checks `text`.
pub(crate) fn compile(text: &str, want: Want, declared: &Declared) -> Result<Expr, Vec<Fault>> {
    if text.len() > MAX_BYTES {
        let message = format!("an expression of {} bytes is too long", text.len());
        let help =
            format!("write at most {MAX_BYTES} bytes, or compute an attribute in the caller");
        return Err(Fault::whole(message, help));
    }
    if deepest_brackets(text) > MAX_BRACKETS {
        let message = format!("more than {MAX_BRACKETS} brackets within brackets");
        return Err(Fault::whole(message, "simplify the expression"));
    }
    // The parser recurses for each operator of a chain, so it runs on its own large stack. An accepted
    // expression is shallow enough for any thread.
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("expression".to_owned())
            .stack_size(PARSER_STACK)
            .spawn_scoped(scope, || parse_and_check(text, want, declared))
            .ok()
            .and_then(|parser| parser.join().ok())
            .unwrap_or_else(|| {
                Err(Fault::whole(
                    "the expression cannot be parsed",
                    "simplify it",
                ))
            })
    })
}

fn parse_and_check(text: &str, want: Want, declared: &Declared) -> Result<Expr, Vec<Fault>> {
    let program = Program::compile(text).map_err(|errors| {
        // Later errors are usually consequences of the first.
        let Some(error) = errors.errors.first() else {
            let help = "write CEL, such as 'method != \"OPTIONS\"'";
            return Fault::whole("not an expression", help);
        };
        let (message, help) = syntax(&error.msg);
        vec![Fault {
            range: offset(text, error.pos).map(|at| at..at + 1),
            message,
            help: help.to_owned(),
        }]
    })?;
    let found = check::check(&program, text, declared)?;
    let fits = match want {
        Want::Bool => found.ty.may_be(&Ty::Bool),
        Want::Int => found.ty.may_be(&Ty::Int),
    };
    if !fits {
        return Err(mismatch(text, want, &found.ty));
    }
    let ty = |name: &String| declared.get(name).copied();
    Ok(Expr {
        program,
        text: text.trim().to_owned(),
        types: found.names.iter().map(ty).collect(),
        names: found.names,
        reads_map: found.reads_map,
        needs: found.needs,
    })
}

impl Expr {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The attributes that the expression reads without asking whether the request has them.
    pub(crate) fn needs(&self) -> &[String] {
        &self.needs
    }

    /// Whether the expression reads no attribute at all.
    pub(crate) fn is_constant(&self) -> bool {
        self.names.is_empty() && !self.reads_map
    }
}

fn mismatch(text: &str, want: Want, found: &Ty) -> Vec<Fault> {
    let text = text.trim();
    let is_simple = |c: char| c.is_ascii_alphanumeric() || "_.()".contains(c);
    let simple = text.chars().all(is_simple);
    let wrapped = if simple { text } else { "…" };
    match (want, found) {
        (Want::Bool, found) => Fault::whole(
            format!("`when` must yield a bool, and this yields {found}"),
            match found {
                Ty::String => format!("compare it, such as '{wrapped} == \"GET\"'"),
                _ => format!("compare it, such as '{wrapped} > 0'"),
            },
        ),
        (Want::Int, found) => Fault::whole(
            format!("`cost` must yield an int, and this yields {found}"),
            match found {
                Ty::Double if text.parse::<f64>().is_ok() => "costs are whole numbers".to_owned(),
                Ty::String | Ty::Double | Ty::Uint => format!("write int({wrapped})"),
                Ty::Bool => format!("choose a number, such as '{wrapped} ? 5 : 1'"),
                _ => "write an expression that yields a whole number".to_owned(),
            },
        ),
    }
}

fn deepest_brackets(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Returns the message of the parser, without its list of all expected tokens, and the remedy.
fn syntax(message: &str) -> (String, &'static str) {
    let said = message.lines().next().unwrap_or_default();
    let said = said.trim_start_matches("Syntax error: ");
    let said = said.split(" expecting ").next().unwrap_or_default();
    if said.contains("token recognition error at: '= ") || said.ends_with("at: '='") {
        return ("`=` is not an operator".to_owned(), "write == to compare");
    }
    let help = "write CEL, such as 'method != \"OPTIONS\"' or 'int(tokens) * 2'";
    if said.contains("'<EOF>'") {
        return ("the expression ends too early".to_owned(), help);
    }
    (format!("not an expression: {said}"), help)
}

/// Returns the byte offset of a line and column, both counted from 1.
fn offset(text: &str, (line, column): (isize, isize)) -> Option<usize> {
    let line = usize::try_from(line).ok()?.checked_sub(1)?;
    let column = usize::try_from(column).ok()?.checked_sub(1)?;
    let start: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let at = (start + column).min(text.len().saturating_sub(1));
    text.is_char_boundary(at).then_some(at)
}
