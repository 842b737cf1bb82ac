//! A bound on the work of an expression, for any request.
//!
//! A macro such as `all` evaluates its argument for each item of a list, so the work of nested macros
//! multiplies. A list or a text that a macro appends to grows with each item. The bound is found when the
//! policy is read. It counts a step for each node that is evaluated, and for each part of a value that is
//! copied.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

/// The most steps of an expression. A step takes about 0.1 µs.
pub(super) const MAX_STEPS: u64 = 20_000;

/// The most attributes of a request, at any door.
const ATTRIBUTES: u64 = 64;
/// How many bytes of text count as one part of a value.
const BYTES: u64 = 256;
/// The parts of the value of an attribute: 1 KiB of text.
const TEXT: u64 = 4;

/// The largest size of a value.
#[derive(Clone, Debug)]
struct Size {
    /// How many items a macro visits.
    items: u64,
    /// All parts of the value: its items, their items, and so on.
    parts: u64,
    /// The largest size of an item.
    item: Option<Box<Size>>,
}

const SCALAR: Size = Size::of(1);

impl Size {
    /// Returns the size of a value without items.
    const fn of(parts: u64) -> Size {
        Size {
            items: 0,
            parts,
            item: None,
        }
    }

    /// Returns the size of a list or a map with this many items.
    fn list(items: u64, parts: u64, item: Size) -> Size {
        let item = Some(Box::new(item));
        Size { items, parts, item }
    }

    /// Returns the size of both values together.
    fn and(self, other: Size) -> Size {
        Size {
            items: self.items.saturating_add(other.items),
            parts: self.parts.saturating_add(other.parts),
            item: larger_item(self.item, other.item),
        }
    }

    /// Returns a size that both values fit into.
    fn max(self, other: Size) -> Size {
        Size {
            items: self.items.max(other.items),
            parts: self.parts.max(other.parts),
            item: larger_item(self.item, other.item),
        }
    }

    /// Returns the largest size of one item.
    fn item(&self) -> Size {
        self.item.as_deref().cloned().unwrap_or(SCALAR)
    }
}

fn larger_item(a: Option<Box<Size>>, b: Option<Box<Size>>) -> Option<Box<Size>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(Box::new(a.max(*b))),
        (a, b) => a.or(b),
    }
}

/// Returns the first part of an expression that may take more than [`MAX_STEPS`], and its steps.
pub(super) fn excess(expr: &IdedExpr) -> Option<(&IdedExpr, u64)> {
    let mut bound = Bound::default();
    bound.walk(expr);
    bound.excess
}

#[derive(Default)]
struct Bound<'e> {
    /// Variables of enclosing macros, innermost last.
    scope: Vec<(&'e str, Size)>,
    excess: Option<(&'e IdedExpr, u64)>,
}

impl<'e> Bound<'e> {
    /// Returns the maximum number of steps of an expression, and the largest size of its value.
    fn walk(&mut self, expr: &'e IdedExpr) -> (u64, Size) {
        let (steps, size) = match &expr.expr {
            Expr::Literal(literal) => (1, literal_size(literal)),
            Expr::Ident(name) => (1, self.ident(name)),
            Expr::Select(select) => {
                let (steps, size) = self.walk(&select.operand);
                let size = if select.test { SCALAR } else { size.item() };
                (steps.saturating_add(1), size)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.container(list.elements.iter(), 1),
            Expr::Map(map) => {
                let parts = map.entries.iter().filter_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                    EntryExpr::StructField(_) => None,
                });
                self.container(parts.flatten(), 2)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            // The type checker rejects these.
            Expr::Struct(_) | Expr::Unspecified => (1, SCALAR),
        };
        if steps > MAX_STEPS && self.excess.is_none() {
            self.excess = Some((expr, steps));
        }
        (steps, size)
    }

    fn ident(&self, name: &str) -> Size {
        let mut known = self.scope.iter().rev();
        match known.find(|(known, _)| *known == name) {
            Some((_, size)) => size.clone(),
            None if name == "attributes" => {
                Size::list(ATTRIBUTES, ATTRIBUTES * (1 + TEXT), Size::of(TEXT))
            }
            None => Size::of(TEXT),
        }
    }

    /// Returns the same for a list or a map. Each item has `of_item` parts: 2 for a map, the key
    /// and the value. The parts are copied into the list or map.
    fn container(
        &mut self,
        parts: impl Iterator<Item = &'e IdedExpr>,
        of_item: u64,
    ) -> (u64, Size) {
        let (mut steps, mut count, mut sum, mut largest) = (1u64, 0, 1u64, SCALAR);
        for part in parts {
            let (work, size) = self.walk(part);
            count += 1;
            sum = sum.saturating_add(size.parts);
            steps = steps.saturating_add(work).saturating_add(size.parts);
            largest = largest.max(size);
        }
        (steps, Size::list(count / of_item, sum, largest))
    }

    fn call(&mut self, call: &'e CallExpr) -> (u64, Size) {
        let arguments = call.target.as_deref().into_iter().chain(&call.args);
        let mut sizes = Vec::with_capacity(3);
        let mut steps = 1u64;
        let mut read = 0u64;
        for argument in arguments {
            let (work, size) = self.walk(argument);
            steps = steps.saturating_add(work);
            read = read.saturating_add(size.parts);
            sizes.push(size);
        }
        let size = match call.func_name.as_str() {
            "_&&_" | "_||_" | "!_" | "@not_strictly_false" => return (steps, SCALAR),
            "_?_:_" => {
                let branches = sizes.into_iter().skip(1);
                return (steps, branches.fold(SCALAR, Size::max));
            }
            "_[_]" => {
                let item = sizes.first().map_or(SCALAR, Size::item);
                return (steps.saturating_add(item.parts), item);
            }
            "_+_" => sizes.into_iter().fold(Size::of(0), Size::and),
            "string" | "bytes" | "dyn" => sizes.into_iter().fold(SCALAR, Size::max),
            _ => SCALAR,
        };
        // A sum, a comparison, a lookup or a conversion reads its operands.
        (steps.saturating_add(read), size)
    }

    fn comprehension(&mut self, it: &'e ComprehensionExpr) -> (u64, Size) {
        let (range, list) = self.walk(&it.iter_range);
        let (start, first) = self.walk(&it.accu_init);
        let outer = self.scope.len();
        self.scope.push((&it.iter_var, list.item()));
        if let Some(second) = &it.iter_var2 {
            self.scope.push((second, list.item()));
        }
        self.scope.push((&it.accu_var, first.clone()));
        let (condition, _) = self.walk(&it.loop_cond);
        let (step, next) = self.walk(&it.loop_step);
        self.scope.truncate(outer);
        // Each step of a macro reads the result so far once, so the result grows by the same amount
        // in each step.
        let grown = |from: u64, to: u64| {
            let growth = to.saturating_sub(from).saturating_mul(list.items);
            from.saturating_add(growth)
        };
        let total = Size {
            items: grown(first.items, next.items),
            parts: grown(first.parts, next.parts),
            item: next.item,
        };
        self.scope.push((&it.accu_var, total));
        let (result, size) = self.walk(&it.result);
        self.scope.truncate(outer);
        // Each item is copied into the variable of the macro. All items together have as many parts
        // as the list.
        let each = condition.saturating_add(step).saturating_mul(list.items);
        let steps = [range, start, each, list.parts, result, 1];
        (steps.into_iter().fold(0, u64::saturating_add), size)
    }
}

fn literal_size(literal: &LiteralValue) -> Size {
    let bytes = match literal {
        LiteralValue::String(text) => text.inner().len(),
        LiteralValue::Bytes(bytes) => bytes.inner().len(),
        _ => 0,
    };
    Size::of(1 + bytes as u64 / BYTES)
}

#[cfg(test)]
mod tests {
    use cel::Program;

    use super::*;

    fn steps(text: &str) -> u64 {
        let program = Program::compile(text).unwrap();
        Bound::default().walk(program.expression()).0
    }

    fn exceeds(text: &str) -> bool {
        excess(Program::compile(text).unwrap().expression()).is_some()
    }

    #[test]
    fn macros_within_macros_multiply() {
        let list = "[1,2,3,4,5,6,7,8,9,10]";
        let mut body = "true".to_owned();
        let mut before = 0;
        for level in 0..5 {
            body = format!("{list}.all(x{level}, {body})");
            let now = steps(&body);
            assert!(now > before * 10, "{now} after {before}");
            before = now;
        }
        assert!(exceeds(&body));
        assert!(!exceeds(&format!("{list}.all(a, {list}.all(b, a != b))")));
    }

    #[test]
    fn ordinary_expressions_are_far_below_the_bound() {
        let hundred: Vec<String> = (0..100).map(|n| format!("\"/v{n}/\"")).collect();
        let list = format!("[{}]", hundred.join(","));
        assert!(steps(&format!("{list}.exists(x, path.startsWith(x))")) < MAX_STEPS / 4);
        assert!(steps("attributes.exists(k, k.startsWith(\"x-\"))") < MAX_STEPS / 4);
        assert!(steps("method != \"OPTIONS\" && int(tokens) * 2 > 5") < 30);
        assert!(!exceeds(
            "attributes.map(k, attributes[k]).exists(v, v == tenant)"
        ));
    }

    #[test]
    fn values_that_grow_are_bounded() {
        // Each map makes the text or the list four times as large.
        for double in ["x + x + x + x", "[x, x, x, x]"] {
            let mut text = "[path]".to_owned();
            for _ in 0..10 {
                text = format!("{text}.map(x, {double})");
            }
            assert!(exceeds(&format!("size({text}) > 0")), "{double}");
        }
        assert!(exceeds(
            "attributes.all(a, attributes.all(b, attributes.all(c, a != b)))"
        ));
        // The items of a list of lists.
        let inner = "[1,2,3,4,5,6,7,8,9,10]";
        let lists = format!("[{inner},{inner},{inner},{inner},{inner},{inner}]");
        assert!(exceeds(&format!(
            "{lists}.all(x, x.all(y, {lists}.all(z, z.all(w, w > y))))"
        )));
    }
}
