//! The operators in the type checker: their operands, their results, and the remedies for mistakes.

use cel::common::ast::IdedExpr;

use super::check::Checker;
use super::types::{Ty, arithmetic};
use crate::validate::is_attribute_name;

impl Checker<'_> {
    /// Checks the operands of an operator, and returns the type of its result; `None` if `name` is not
    /// an operator.
    pub(super) fn operator(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        args: &[IdedExpr],
    ) -> Option<Ty> {
        let ty = match (name, args) {
            ("_&&_" | "_||_", [left, right]) => {
                self.must_be_bool(left, &name[1..3]);
                self.must_be_bool(right, &name[1..3]);
                Ty::Bool
            }
            ("!_", [operand]) => {
                self.must_be_bool(operand, "!");
                Ty::Bool
            }
            ("@not_strictly_false", [operand]) => {
                self.ty(operand);
                Ty::Bool
            }
            ("-_", [operand]) => match self.ty(operand) {
                ty @ (Ty::Int | Ty::Double | Ty::Any) => ty,
                other => {
                    let help = match other {
                        Ty::String => "attributes are text: write int(…) around it",
                        _ => "make it a number",
                    };
                    self.fault(expr, format!("`-` takes a number, not {other}"), help)
                }
            },
            ("_?_:_", [condition, left, right]) => {
                self.must_be_bool(condition, "?:");
                let (left, right) = (self.ty(left), self.ty(right));
                if !left.may_be(&right) {
                    let message = format!("one branch yields {left}, the other {right}");
                    self.fault(expr, message, "make both branches yield the same type");
                }
                left.join(right)
            }
            ("_==_" | "_!=_", [left, right]) => {
                let (left, right) = (self.ty(left), self.ty(right));
                if !left.may_equal(&right) {
                    self.never_equal(expr, &left, &right);
                }
                Ty::Bool
            }
            ("_<_" | "_<=_" | "_>_" | "_>=_", [left, right]) => {
                let (left, right) = (self.ty(left), self.ty(right));
                if !left.may_order(&right) {
                    let symbol = name.trim_matches('_');
                    let message = format!("`{symbol}` cannot compare {left} with {right}");
                    self.fault(expr, message, convert_one(&left, &right));
                }
                Ty::Bool
            }
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [left, right]) => {
                let (left, right) = (self.ty(left), self.ty(right));
                let symbol = name.trim_matches('_');
                match arithmetic(symbol, &left, &right) {
                    Some(ty) => ty,
                    None => {
                        let message = format!("`{symbol}` cannot take {left} and {right}");
                        self.fault(expr, message, convert_one(&left, &right))
                    }
                }
            }
            ("@in", [element, container]) => {
                self.note_lookup(container, element, true);
                let (element, container) = (self.ty(element), self.ty(container));
                match &container {
                    Ty::Any => {}
                    Ty::Network if element.may_be(&Ty::String) => {}
                    Ty::Network => {
                        let message = format!("{element} is not an address");
                        let help = "write it as in 'ip in cidr(\"10.0.0.0/8\")'";
                        self.fault(expr, message, help);
                    }
                    Ty::List(of) | Ty::Map(of, _) if element.may_equal(of) => {}
                    Ty::List(of) | Ty::Map(of, _) => {
                        self.never_equal(expr, &element, &of.clone());
                    }
                    other => {
                        let message = format!(
                            "`in` needs a list, a map or a cidr(…) on its right side, not {other}"
                        );
                        self.fault(expr, message, "for example: action in [\"a\", \"b\"]");
                    }
                }
                Ty::Bool
            }
            ("_[_]", [container, index]) => {
                self.note_lookup(container, index, false);
                let (container, index) = (self.ty(container), self.ty(index));
                match container {
                    Ty::Any => Ty::Any,
                    Ty::List(element) if index.may_equal(&Ty::Int) => *element,
                    Ty::Map(key, value) if index.may_equal(&key) => *value,
                    other => {
                        let message = format!("{other} cannot be indexed with {index}");
                        self.fault(expr, message, "write it as in attributes[\"x-name\"]")
                    }
                }
            }
            _ if name.starts_with(['_', '@', '!', '-'])
                && name.contains(['_', '@'])
                && !is_attribute_name(name) =>
            {
                let help = "write it with the plain operators";
                self.fault(expr, "this syntax is not supported", help)
            }
            _ => return None,
        };
        Some(ty)
    }

    fn must_be_bool(&mut self, operand: &IdedExpr, symbol: &str) {
        let ty = self.ty(operand);
        if !ty.may_be(&Ty::Bool) {
            let help = match ty {
                Ty::String => "compare it, as in 'plan == \"free\"', or convert it with bool(…)",
                _ => "compare it, as in 'size(name) > 0'",
            };
            self.fault(operand, format!("`{symbol}` takes a bool, not {ty}"), help);
        }
    }

    fn never_equal(&mut self, expr: &IdedExpr, left: &Ty, right: &Ty) {
        let help = match (left, right) {
            (Ty::Null, _) | (_, Ty::Null) => {
                "attributes are never null: ask with '\"name\" in attributes'"
            }
            (Ty::Network, _) | (_, Ty::Network) => {
                "ask for each network, as in 'ip in cidr(\"10.0.0.0/8\") || ip in cidr(\"fd00::/8\")'"
            }
            _ => convert_one(left, right),
        };
        self.fault(expr, format!("{left} never equals {right}"), help);
    }
}

const CONVERT: &str = "convert one of them, with int(…), double(…) or string(…)";

/// Returns the remedy for two operands with types that do not go together.
fn convert_one(left: &Ty, right: &Ty) -> &'static str {
    match (left, right) {
        (Ty::String, Ty::String) => "attributes are text: write int(…) around each",
        (Ty::String, other) | (other, Ty::String) => match other {
            Ty::Int => "write int(…) around the text, or the number in quotes",
            Ty::Bool => "attributes are text: write bool(…) around the text, or the word in quotes",
            Ty::Double => "attributes are text: write double(…) around the text",
            _ => CONVERT,
        },
        _ => CONVERT,
    }
}
