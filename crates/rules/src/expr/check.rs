//! A type checker for parsed expressions.
//!
//! The checker knows every operator and function that the evaluator has, so an expression that passes
//! can only fail on the values of a request. A type that cannot be known is accepted. The checker finds
//! every fault, not only the first.

use std::collections::BTreeSet;
use std::ops::Range;

use cel::Program;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr,
};

use super::bound;
use super::network::CIDR;
use super::types::{FUNCTIONS, MACROS, Ty};
use super::{Declared, Fault};
use crate::address::parse_network;
use crate::document::suggestion;
use crate::raw::AttributeType;
use crate::validate::is_attribute_name;

/// The deepest nesting of an expression. In an unoptimised build the evaluator needs about 50 KB of
/// stack for each level. Threads have 2 MB of stack, and the deepest expression uses about half of it.
/// The parser balances chains of `&&` and `||`, so such chains add few levels.
const MAX_DEPTH: usize = 24;

/// The names of CEL types. Some are also functions, but without a call such a name is a type.
const TYPE_NAMES: [&str; 11] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
];

/// The result type of a valid expression, and the attributes it reads.
pub(super) struct Checked {
    pub(super) ty: Ty,
    pub(super) reads_map: bool,
    /// The attributes that the expression reads by name, each once.
    pub(super) names: Vec<String>,
    /// The attributes that the expression reads without asking whether the request has them.
    pub(super) needs: Vec<String>,
}

/// Checks a program, or returns all of its faults.
pub(super) fn check(
    program: &Program,
    text: &str,
    declared: &Declared,
) -> Result<Checked, Vec<Fault>> {
    let mut checker = Checker {
        program,
        text,
        declared,
        scope: Vec::new(),
        names: Vec::new(),
        reads_map: false,
        reads: BTreeSet::new(),
        tested: BTreeSet::new(),
        faults: Vec::new(),
        depth: 0,
    };
    let ty = checker.ty(program.expression());
    if checker.faults.is_empty()
        && let Some((part, steps)) = bound::excess(program.expression())
    {
        let message = format!(
            "this may take {steps} steps for one request, and {} is the most",
            bound::MAX_STEPS
        );
        let help = "use fewer nested macros, or shorter lists; `in` searches a list without a macro: 'action in [\"a\", \"b\"]'";
        checker.fault(part, message, help);
    }
    let names = checker.take_names();
    checker.reads.extend(names.iter().cloned());
    if checker.faults.is_empty() {
        Ok(Checked {
            ty,
            reads_map: checker.reads_map,
            names,
            needs: checker.reads.difference(&checker.tested).cloned().collect(),
        })
    } else {
        Err(checker.faults)
    }
}

pub(super) struct Checker<'p> {
    program: &'p Program,
    text: &'p str,
    declared: &'p Declared,
    /// Variables of enclosing macros, innermost last.
    scope: Vec<(String, Ty)>,
    /// Attributes read by name.
    names: Vec<(String, Range<usize>)>,
    reads_map: bool,
    /// Attributes that are read, by name or from the map of all attributes.
    reads: BTreeSet<String>,
    /// Attributes that the expression asks for with `has` or `in`.
    tested: BTreeSet<String>,
    faults: Vec<Fault>,
    depth: usize,
}

impl Checker<'_> {
    pub(super) fn fault(
        &mut self,
        at: &IdedExpr,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Ty {
        let range = self.range(at);
        self.faults.push(Fault {
            range,
            message: message.into(),
            help: help.into(),
        });
        Ty::Any
    }

    /// Returns the part of the text that `expr` was parsed from.
    fn range(&self, expr: &IdedExpr) -> Option<Range<usize>> {
        let info = self.program.source_info();
        let own = info.offset_for(expr.id);
        let own = own.map(|(start, stop)| self.widen(expr, start as usize..stop as usize + 1));
        let join = |a: Option<Range<usize>>, b: Option<Range<usize>>| match (a, b) {
            (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
            (a, b) => a.or(b),
        };
        let inner = match &expr.expr {
            Expr::Call(call) => {
                let parts = call.target.as_deref().into_iter().chain(&call.args);
                parts.fold(None, |range, part| join(range, self.range(part)))
            }
            Expr::Select(select) => self.range(&select.operand),
            _ => None,
        };
        join(own, inner)
    }

    /// Adds the name to the range of a call or a selection: the parser marks only the bracket or the
    /// dot.
    fn widen(&self, expr: &IdedExpr, token: Range<usize>) -> Range<usize> {
        match &expr.expr {
            Expr::Call(call) if call.target.is_none() => {
                let before = self.text.get(..token.start).unwrap_or_default();
                match before.strip_suffix(call.func_name.as_str()) {
                    Some(rest) => rest.len()..token.end,
                    None => token,
                }
            }
            Expr::Select(select) => {
                let after = self.text.get(token.end..).unwrap_or_default();
                match after.starts_with(select.field.as_str()) {
                    true => token.start..token.end + select.field.len(),
                    false => token,
                }
            }
            _ => token,
        }
    }

    pub(super) fn ty(&mut self, expr: &IdedExpr) -> Ty {
        if self.depth >= MAX_DEPTH {
            if self.faults.is_empty() {
                let help =
                    "simplify it; a map looks up many values: {\"free\": 10, \"pro\": 1}[plan]";
                let message = format!("the expression is more than {MAX_DEPTH} levels deep");
                self.fault(expr, message, help);
            }
            return Ty::Any;
        }
        self.depth += 1;
        let ty = match &expr.expr {
            Expr::Literal(literal) => literal_ty(literal),
            Expr::Ident(name) => self.ident(expr, name),
            Expr::Select(select) => self.select(expr, select),
            Expr::Call(call) => self.call(expr, call),
            Expr::List(list) => {
                let mut element = None;
                for item in &list.elements {
                    let ty = self.ty(item);
                    element = Some(element.map_or(ty.clone(), |known: Ty| known.join(ty)));
                }
                Ty::list(element.unwrap_or(Ty::Any))
            }
            Expr::Map(map) => {
                let mut types: Option<(Ty, Ty)> = None;
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        let (key, value) = (self.ty(&entry.key), self.ty(&entry.value));
                        types = Some(match types {
                            None => (key, value),
                            Some((k, v)) => (k.join(key), v.join(value)),
                        });
                    }
                }
                let (key, value) = types.unwrap_or((Ty::Any, Ty::Any));
                Ty::map(key, value)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(_) => self.fault(expr, "structs are not supported", "attributes are text"),
            Expr::Unspecified => self.fault(expr, "not an expression", "write CEL"),
        };
        self.depth -= 1;
        ty
    }

    fn ident(&mut self, expr: &IdedExpr, name: &str) -> Ty {
        if let Some((_, ty)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return ty.clone();
        }
        if name == "attributes" {
            self.reads_map = true;
            return Ty::map(Ty::String, Ty::String);
        }
        if TYPE_NAMES.contains(&name) {
            let help = format!(
                "write {name}(…) to convert, or attributes[\"{name}\"] for an attribute of that name"
            );
            return self.fault(expr, format!("`{name}` is the name of a type"), help);
        }
        self.attribute(expr, name)
    }

    fn attribute(&mut self, expr: &IdedExpr, name: &str) -> Ty {
        if !is_attribute_name(name) {
            let help = "use letters, digits and `_`, or attributes[\"…\"] for other names";
            return self.fault(expr, format!("`{name}` cannot be an attribute"), help);
        }
        let range = self.range(expr).unwrap_or_default();
        self.names.push((name.to_owned(), range));
        match self.declared.get(name) {
            Some(AttributeType::Int) => Ty::Int,
            Some(AttributeType::Double) => Ty::Double,
            Some(AttributeType::Bool) => Ty::Bool,
            Some(AttributeType::String) | None => Ty::String,
        }
    }

    fn select(&mut self, expr: &IdedExpr, select: &SelectExpr) -> Ty {
        if !select.test
            && let Some(name) = self.dotted(expr)
        {
            return self.attribute(expr, &name);
        }
        let operand = self.ty(&select.operand);
        let (test, field) = (select.test, &select.field);
        if self.is_map(&select.operand) {
            let set = if test {
                &mut self.tested
            } else {
                &mut self.reads
            };
            set.insert(field.clone());
        }
        match operand {
            Ty::Map(_, _) | Ty::Any if test => Ty::Bool,
            Ty::Map(_, value) => *value,
            Ty::Any => Ty::Any,
            other if test => {
                let message = format!("has() asks for a key of a map, and this is {other}");
                self.fault(expr, message, "write has(attributes.name)")
            }
            other => {
                let help = "attributes are text: compare them, or convert with int(…)";
                self.fault(expr, format!("{other} has no field `{field}`"), help)
            }
        }
    }

    /// Whether `expr` is the map of all attributes.
    fn is_map(&self, expr: &IdedExpr) -> bool {
        let name = "attributes";
        matches!(&expr.expr, Expr::Ident(it) if it == name)
            && !self.scope.iter().any(|(known, _)| known == name)
    }

    /// Notes `"name" in attributes` as a test, and `attributes["name"]` as a read.
    pub(super) fn note_lookup(&mut self, map: &IdedExpr, key: &IdedExpr, test: bool) {
        if let Expr::Literal(LiteralValue::String(name)) = &key.expr
            && self.is_map(map)
        {
            let set = if test {
                &mut self.tested
            } else {
                &mut self.reads
            };
            set.insert(name.inner().to_owned());
        }
    }

    /// Returns the dotted name `a.b.c` if `a` is an attribute and not a variable of a macro. The dots
    /// belong to the attribute's name.
    fn dotted(&self, expr: &IdedExpr) -> Option<String> {
        match &expr.expr {
            Expr::Ident(name) => {
                let known = self.scope.iter().any(|(known, _)| known == name);
                (!known && name != "attributes" && !name.starts_with('@')).then(|| name.clone())
            }
            Expr::Select(select) if !select.test => {
                let before = self.dotted(&select.operand)?;
                Some(format!("{before}.{}", select.field))
            }
            _ => None,
        }
    }

    /// Returns the attributes that are read by name. Reports an expression with both `a` and `a.b`:
    /// otherwise the request would decide whether `a.b` is an attribute or a part of `a`.
    fn take_names(&mut self) -> Vec<String> {
        let names = std::mem::take(&mut self.names);
        for (name, range) in &names {
            let rest = |other: &str| name.strip_prefix(other).unwrap_or_default();
            let prefix = |other: &str| rest(other).starts_with('.');
            if let Some((other, _)) = names.iter().find(|(other, _)| prefix(other)) {
                self.faults.push(Fault {
                    range: Some(range.clone()),
                    message: format!("`{name}` has two meanings: an attribute of this name, or a field of `{other}`, which is used too"),
                    help: format!("write attributes[\"{name}\"]"),
                });
                break;
            }
        }
        let mut names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Ty {
        let range = self.ty(&it.iter_range);
        let element = match range {
            Ty::List(element) => *element,
            Ty::Map(key, _) => *key,
            Ty::Any => Ty::Any,
            other => {
                let message = format!("this needs a list or a map, not {other}");
                let help = "call it on a list, such as [\"a\", \"b\"].exists(x, x == tenant)";
                self.fault(&it.iter_range, message, help)
            }
        };
        let start = self.ty(&it.accu_init);
        let outer = self.scope.len();
        self.scope.push((it.iter_var.clone(), element.clone()));
        if let Some(second) = &it.iter_var2 {
            self.scope.push((second.clone(), Ty::Any));
        }
        self.scope.push((it.accu_var.clone(), start.clone()));
        self.ty(&it.loop_cond);
        let step = self.ty(&it.loop_step);
        self.scope.truncate(outer);
        let total = match (start, step) {
            (Ty::List(empty), step @ Ty::List(_)) if *empty == Ty::Any => step,
            (start, step) => start.join(step),
        };
        self.scope.push((it.accu_var.clone(), total));
        let result = self.ty(&it.result);
        self.scope.truncate(outer);
        result
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr) -> Ty {
        let name = call.func_name.as_str();
        if call.target.is_none()
            && let Some(ty) = self.operator(expr, name, &call.args)
        {
            return ty;
        }
        let arguments = call.target.as_deref().into_iter().chain(&call.args);
        let types: Vec<Ty> = arguments.map(|argument| self.ty(argument)).collect();
        let member = call.target.is_some();
        let known = FUNCTIONS.iter().filter(|function| function.name == name);
        let mut known = known.peekable();
        let Some(first) = known.peek() else {
            return self.unknown_function(expr, name);
        };
        let usage = first.usage;
        let result = known.find(|function| {
            let mut pairs = function.arguments.iter().zip(&types);
            function.member == member
                && function.arguments.len() == types.len()
                && pairs.all(|(wanted, ty)| wanted.takes(ty))
        });
        match result {
            Some(_) if name == CIDR => self.network(expr, &call.args),
            Some(function) => function.result.clone(),
            None => {
                let given: Vec<String> = types.iter().map(ToString::to_string).collect();
                let given = match (member, given.split_first()) {
                    (true, Some((on, []))) => format!("on {on} without arguments"),
                    (true, Some((on, rest))) => format!("on {on} with {}", rest.join(", ")),
                    (_, None) => "without arguments".to_owned(),
                    (false, _) => format!("with {}", given.join(", ")),
                };
                let message = format!("`{name}` cannot be called {given}");
                self.fault(expr, message, format!("write it as in {usage}"))
            }
        }
    }

    /// Checks the argument of `cidr`: a network that is written in the expression, so that it is checked
    /// before any request.
    fn network(&mut self, expr: &IdedExpr, arguments: &[IdedExpr]) -> Ty {
        if let [argument] = arguments {
            if let Expr::Literal(LiteralValue::String(text)) = &argument.expr {
                if let Err(bad) = parse_network(text.inner()) {
                    self.fault(argument, bad.message, bad.help);
                }
                return Ty::Network;
            }
            let help = "write it in quotes, as in cidr(\"10.0.0.0/8\")";
            self.fault(expr, "the network must be written in the expression", help);
        }
        Ty::Network
    }

    fn unknown_function(&mut self, expr: &IdedExpr, name: &str) -> Ty {
        if let Some((_, usage)) = MACROS.iter().find(|(known, _)| *known == name) {
            let message = format!("`{name}` is used in the wrong form");
            return self.fault(expr, message, format!("write it as in {usage}"));
        }
        let names = FUNCTIONS.iter().map(|function| function.name);
        let help = match name {
            "matches" => "there are no regular expressions: use startsWith, endsWith, contains, \
                          or a glob in `match`"
                .to_owned(),
            "min" | "max" => "choose with a condition, such as 'a > b ? a : b'".to_owned(),
            _ => {
                let mut all: Vec<&str> = names.clone().collect();
                all.dedup();
                let macros = MACROS.iter().map(|(name, _)| *name);
                let all = format!("the functions are {}", all.join(", "));
                suggestion(name, names.chain(macros), all)
            }
        };
        self.fault(expr, format!("there is no function `{name}`"), help)
    }
}

fn literal_ty(literal: &LiteralValue) -> Ty {
    match literal {
        LiteralValue::Boolean(_) => Ty::Bool,
        LiteralValue::Bytes(_) => Ty::Bytes,
        LiteralValue::Double(_) => Ty::Double,
        LiteralValue::Int(_) => Ty::Int,
        LiteralValue::Null => Ty::Null,
        LiteralValue::String(_) => Ty::String,
        LiteralValue::UInt(_) => Ty::Uint,
    }
}
