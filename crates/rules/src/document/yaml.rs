//! Parses YAML text into a tree of nodes with their positions.
//!
//! Scalars keep their text as written. The field that a value belongs to decides the meaning of
//! `1_000`, `60/m` or `on`. The tree is bounded in depth and in size, so that a file cannot exhaust
//! memory. An alias counts each time it is used. An alias shares the anchored node; merge keys (`<<`)
//! are not supported.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError};

use super::{Place, Problems, Short};

/// The deepest nesting of a config.
const MAX_DEPTH: usize = 32;
/// The most nodes of a tree, with aliases expanded.
const MAX_NODES: usize = 1_000_000;

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// The position of the node.
    pub place: Place,
    /// The value.
    pub value: Value,
    nodes: usize,
}

/// The kinds of values.
#[derive(Clone, Debug)]
pub enum Value {
    /// Text, and whether it was written without quotes.
    Scalar {
        /// The text as written.
        text: Arc<str>,
        /// Whether the text is written without quotes.
        plain: bool,
    },
    /// Values in order.
    List(Arc<[Node]>),
    /// Names and values in order, duplicates included.
    Map(Arc<[(Node, Node)]>),
    /// A broken value. The problem was reported.
    Broken,
}

impl Node {
    /// The text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether the node is a scalar without quotes.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.value, Value::Scalar { plain: true, .. })
    }

    /// Whether the node is an empty value, `~` or `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.is_plain() && matches!(self.text(), Some("" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether the node is a value that was already reported as broken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self.value, Value::Broken)
    }

    /// Makes a node of a text that does not come from YAML.
    #[must_use]
    pub fn scalar(place: Place, text: &str) -> Node {
        let text = text.into();
        Node::leaf(place, Value::Scalar { text, plain: false })
    }

    fn leaf(place: Place, value: Value) -> Node {
        let nodes = 1;
        Node {
            place,
            value,
            nodes,
        }
    }

    /// Makes a map that does not come from YAML.
    #[must_use]
    pub fn map(place: Place, entries: Vec<(Node, Node)>) -> Node {
        let nodes = entries.iter().map(|(key, it)| key.nodes + it.nodes);
        Node {
            place,
            nodes: 1 + nodes.sum::<usize>(),
            value: Value::Map(entries.into()),
        }
    }

    /// Describes the node, for "expected …, found …".
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } => format!("`{}`", Short(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Broken => "an unknown alias".to_owned(),
        }
    }
}

/// A collection that is still open.
struct Open {
    place: Place,
    anchor: usize,
    nodes: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map(Vec<(Node, Node)>, Option<Node>),
}

/// Reads the source of `problems` as one document, or reports why the source cannot be read. `start` is
/// the remedy for an empty document.
pub fn parse_document(start: &str, problems: &mut Problems<'_>) -> Option<Node> {
    let source = problems.source();
    let options = granit_parser::options! {
        emit_unresolved_aliases: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder {
        open: Vec::new(),
        anchors: HashMap::new(),
        root: None,
        documents: 0,
    };
    for next in Parser::new_from_str_with_options(source, options) {
        match next {
            Ok((event, span)) => {
                let place = span
                    .byte_range()
                    .map_or_else(Place::default, |range| Place::new(range.start, range.end));
                if let Some(tag) = span.tag_span().and_then(|tag| tag.byte_range()) {
                    let help = "remove the tag; quote the value if it must be read as text";
                    let place = Place::new(tag.start, tag.end);
                    problems.report(place, "tags are not supported", help);
                }
                builder.take(event, place, problems).ok()?;
            }
            Err(error) => {
                report_syntax(&error, problems);
                return None;
            }
        }
    }
    match builder.root {
        Some(root) if !root.is_null() => Some(root),
        _ => {
            problems.report(Place::default(), "the file is empty", start);
            None
        }
    }
}

/// Parsing stopped early. The reason was reported.
struct GivenUp;

struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    documents: usize,
}

impl Builder {
    fn take(
        &mut self,
        event: Event<'_>,
        place: Place,
        problems: &mut Problems<'_>,
    ) -> Result<(), GivenUp> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let help = "a config is one document: remove the `---` and all after it";
                    problems.report(place, "a second document starts here", help);
                    return Err(GivenUp);
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, _) => {
                let value = Value::Scalar {
                    text: text.into(),
                    plain: style == ScalarStyle::Plain,
                };
                self.complete(Node::leaf(place, value), anchor, problems)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(place, anchor, Items::List(Vec::new()));
                Ok(())
            }
            Event::MappingStart(_, anchor, _) => {
                self.open(place, anchor, Items::Map(Vec::new(), None));
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(place, problems),
            Event::Alias(anchor) => {
                // Problems in the shared value are shown at the anchor, not at the alias.
                let node = self.anchors.get(&anchor).cloned().unwrap_or_else(|| {
                    let message = "this alias stands inside the value it refers to";
                    let help = "refer to a value that ends before the alias";
                    problems.report(place, message, help);
                    Node::leaf(place, Value::Broken)
                });
                self.complete(node, 0, problems)
            }
            Event::UnresolvedAlias(name) => {
                let message = format!("there is no anchor `&{name}` above this alias");
                let help =
                    "define the anchor before its use, or quote a value that starts with `*`";
                problems.report(place, message, help);
                self.complete(Node::leaf(place, Value::Broken), 0, problems)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, place: Place, anchor: usize, items: Items) {
        self.open.push(Open {
            place,
            anchor,
            nodes: 1,
            items,
        });
    }

    fn close(&mut self, end: Place, problems: &mut Problems<'_>) -> Result<(), GivenUp> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.items {
            Items::List(items) => Value::List(items.into()),
            Items::Map(entries, _) => Value::Map(entries.into()),
        };
        let (place, nodes) = (Place::new(open.place.start, end.end), open.nodes);
        self.complete(
            Node {
                place,
                value,
                nodes,
            },
            open.anchor,
            problems,
        )
    }

    fn complete(
        &mut self,
        node: Node,
        anchor: usize,
        problems: &mut Problems<'_>,
    ) -> Result<(), GivenUp> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.nodes = parent.nodes.saturating_add(node.nodes);
        if parent.nodes > MAX_NODES {
            let message = format!("the config has more than {MAX_NODES} values");
            let help = "use fewer rules, and fewer aliases of large values";
            problems.report(node.place, message, help);
            return Err(GivenUp);
        }
        match &mut parent.items {
            Items::List(items) => items.push(node),
            Items::Map(entries, key) => match key.take() {
                None => *key = Some(node),
                Some(key) => entries.push((key, node)),
            },
        }
        Ok(())
    }
}

fn report_syntax(error: &ScanError, problems: &mut Problems<'_>) {
    let source = problems.source();
    let at = error.marker().byte_offset().unwrap_or(0).min(source.len());
    let place = Place::new(at, at + 1);
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        let message = format!("more than {MAX_DEPTH} levels of nesting");
        let help = "check the brackets: no config needs so many levels";
        return problems.report(place, message, help);
    }
    let before = &source.as_bytes()[..at];
    let newline = before.iter().rposition(|byte| *byte == b'\n');
    let line = &source[newline.map_or(0, |newline| newline + 1)..];
    let mut indent = line.chars().take_while(|c| c.is_whitespace() && *c != '\n');
    let help = match indent.any(|c| c == '\t') {
        true => "YAML is indented with spaces: replace the tab",
        false => {
            "the file is not valid YAML here; check the indentation, the brackets and the quotes"
        }
    };
    problems.report(place, error.info(), help);
}
