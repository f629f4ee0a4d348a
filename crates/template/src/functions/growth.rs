//! What a call can make of its arguments, before it is made: each entry of the table of functions has a
//! [`Growth`], so a function without a bound does not compile. Must not run any function.

use crate::budget::Size;
use crate::dialect::MOST_NUMBERS;
use crate::value::Value;
use crate::yaml::MOST_REPEATED;

/// Upper bound of the memory of a call, from its arguments.
pub(super) type Bound = fn(&[Value]) -> usize;

/// How the result of a function grows with its arguments.
#[derive(Clone, Copy)]
pub(super) enum Growth {
    /// It does not: a number, a truth, a few words, or a part of the arguments, which it shares.
    Flat,
    /// A list or a map that shares the arguments or what is in them. The bound is counted.
    Shares(Bound),
    /// A result that shares nothing. The bound holds while the function runs, temporary memory included; what
    /// is counted is the size of the result.
    Fresh(Bound),
    /// [`Growth::Fresh`], with a search for a regular expression (the first argument) in a text (the second).
    Searches(Bound),
    /// [`Growth::Shares`], with the items compared to each other in pairs.
    Pairs(Bound),
}

/// Returns the most pieces into which `split` divides a text.
fn pieces(text: &str, separator: &str) -> usize {
    if separator.is_empty() { text.len() } else { text.matches(separator).count() + 1 }
}

/// At most `NODE` bytes for each value in the arguments, with all that is in them, and `BYTE` for each byte of
/// text. A writer needs the text itself, the text it makes, and once more what it makes to share it.
pub(super) fn full<const NODE: usize, const BYTE: usize>(a: &[Value]) -> usize {
    Size::of(a).times(NODE, BYTE)
}

/// As [`full`], for text with an indented line for each value.
pub(super) fn indented<const NODE: usize, const BYTE: usize>(a: &[Value]) -> usize {
    let size = Size::of(a);
    size.times(NODE, BYTE).saturating_add(size.indent.saturating_mul(4))
}

/// At most so many bytes, whatever the arguments.
pub(super) fn fixed<const BYTES: usize>(_: &[Value]) -> usize {
    BYTES
}

/// A new list or map of what is directly in the arguments.
pub(super) fn items(a: &[Value]) -> usize {
    a.iter().map(shallow).fold(0, usize::saturating_add)
}

/// Memory for what is directly in a list or map, without what is in that in turn.
pub(super) fn shallow(value: &Value) -> usize {
    64 + match value {
        Value::List(list) => list.items().len().saturating_mul(24),
        // Bytes become numbers, in a list of their own first.
        Value::Bytes(bytes) => bytes.len().saturating_mul(96),
        Value::Map(map) => map.len().saturating_mul(128).saturating_add(640),
        Value::Object(object) => object.items().unwrap_or(1).saturating_mul(128),
        _ => 0,
    }
}

/// A new map or member whose keys are the arguments that `is_key` chooses by position.
fn keyed(a: &[Value], is_key: fn(usize) -> bool) -> usize {
    let keys = a.iter().enumerate().filter(|(index, key)| {
        // A key that is a text is shared.
        is_key(*index) && !matches!(key, Value::Text(_))
    });
    let made = keys.map(|(_, key)| full::<64, 2>(std::slice::from_ref(key)));
    made.fold(a.len().saturating_mul(64), usize::saturating_add)
}

/// `dict KEY VALUE…`.
pub(super) fn dict(a: &[Value]) -> usize {
    keyed(a, |index| index % 2 == 0).saturating_add(640)
}

/// `set MAP KEY VALUE`: one member.
pub(super) fn member(a: &[Value]) -> usize {
    keyed(a, |index| index == 1)
}

/// `merge TARGET SOURCE…`: members of the sources.
pub(super) fn sources(a: &[Value]) -> usize {
    full::<128, 1>(a.get(1..).unwrap_or_default())
}

/// Size of an argument as text.
pub(super) fn length(a: &[Value], index: usize) -> usize {
    match a.get(index) {
        Some(Value::Text(text)) => text.len(),
        Some(other) => full::<48, 2>(std::slice::from_ref(other)),
        None => 0,
    }
}

/// The number at an index; a negative one is 0.
pub(super) fn count(a: &[Value], index: usize) -> usize {
    usize::try_from(a.get(index).map_or(0, Value::to_int)).unwrap_or(0)
}

/// Bytes of an argument that is a text, by their value.
fn counted(a: &[Value], index: usize, wanted: fn(u8) -> bool) -> usize {
    match a.get(index) {
        Some(Value::Text(text)) => text.bytes().filter(|byte| wanted(*byte)).count(),
        _ => length(a, index),
    }
}

/// Three texts: the changed one, the result, the shared result.
fn thrice(bytes: usize) -> usize {
    bytes.saturating_mul(3)
}

/// `repeat COUNT TEXT`.
pub(super) fn repeated(a: &[Value]) -> usize {
    thrice(count(a, 0).saturating_mul(length(a, 1)))
}

/// `indent WIDTH TEXT`.
pub(super) fn lines(a: &[Value]) -> usize {
    let lines = counted(a, 1, |byte| byte == b'\n').saturating_add(1);
    thrice(lines.saturating_mul(count(a, 0)).saturating_add(length(a, 1)))
}

/// `wrapWith WIDTH NEWLINE TEXT`, `wrap WIDTH TEXT`.
pub(super) fn wrapped(a: &[Value]) -> usize {
    let last = a.len().saturating_sub(1);
    let newline = if last == 2 { length(a, 1) } else { 1 };
    let spaces = counted(a, last, |byte| byte == b' ');
    // Words that are longer than the width are divided.
    let breaks = spaces.saturating_add(length(a, last) / count(a, 0).max(1));
    thrice(breaks.saturating_mul(newline).saturating_add(length(a, last)))
}

/// `replace OLD NEW TEXT`.
pub(super) fn replaced(a: &[Value]) -> usize {
    let (old, by, text) = (length(a, 0), length(a, 1), length(a, 2));
    let most = text.checked_div(old).unwrap_or(text.saturating_add(1));
    thrice(most.saturating_mul(by).saturating_add(text))
}

/// Memory of a compiled regular expression, and of the search.
const REGEX: usize = 8 << 20;

/// `regexMatch PATTERN TEXT` and others that make at most `BYTE` bytes of each byte.
pub(super) fn searched<const BYTE: usize>(a: &[Value]) -> usize {
    full::<64, BYTE>(a).saturating_add(REGEX)
}

/// `regexReplaceAll PATTERN TEXT BY`: a group is at most the whole match, and matches do not overlap.
pub(super) fn substituted(a: &[Value]) -> usize {
    let (text, by) = (length(a, 1), length(a, 2));
    let groups = counted(a, 2, |byte| byte == b'$').saturating_add(1);
    let most = text.saturating_add(1).saturating_mul(by);
    thrice(most.saturating_add(text.saturating_mul(groups))).saturating_add(REGEX)
}

/// `join SEPARATOR LIST`, in either order.
pub(super) fn joined<const SEPARATOR: usize, const LIST: usize>(a: &[Value]) -> usize {
    let items = match a.get(LIST) {
        Some(Value::List(list)) => list.items().len(),
        Some(Value::Object(object)) => object.items().unwrap_or(1),
        _ => 1,
    };
    let between = items.saturating_mul(length(a, SEPARATOR));
    full::<64, 4>(a).saturating_add(thrice(between))
}

/// The numbers between two, as text or as a list. Functions refuse more than [`MOST_NUMBERS`].
pub(super) fn numbers(from: i64, to: i64, step: i64) -> usize {
    let count = from.abs_diff(to) / step.unsigned_abs().max(1);
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(MOST_NUMBERS);
    count.saturating_add(1).saturating_mul(64)
}

/// `split SEPARATOR TEXT` and others with `NODE` bytes for each piece.
pub(super) fn divided<const SEPARATOR: usize, const TEXT: usize, const NODE: usize>(
    a: &[Value],
) -> usize {
    let pieces = match (a.get(SEPARATOR), a.get(TEXT)) {
        (Some(Value::Text(separator)), Some(Value::Text(text))) => pieces(text, separator),
        _ => length(a, TEXT),
    };
    pieces.saturating_add(1).saturating_mul(NODE).saturating_add(length(a, TEXT).saturating_mul(2))
}

/// A document: values are as many as there are marks between them, and maps need most.
pub(super) fn document(a: &[Value]) -> usize {
    // An alias in YAML repeats what it names; the parser limits that.
    let aliases = if counted(a, 0, |byte| byte == b'*') > 0 { MOST_REPEATED * 200 } else { 0 };
    let maps = counted(a, 0, |byte| matches!(byte, b'{' | b':' | b'?' | b'=' | b'.'));
    let values = counted(a, 0, |byte| matches!(byte, b',' | b'[' | b'-' | b'\n'));
    let nodes = maps.saturating_mul(1200).saturating_add(values.saturating_mul(200));
    nodes.saturating_add(length(a, 0).saturating_mul(8)).saturating_add(aliases)
}

/// `printf FORMAT ARGUMENT…`: each verb writes one argument, and pads each value in it.
pub(super) fn formatted(a: &[Value]) -> usize {
    const DIGITS: usize = 32;
    let rest = a.get(1..).unwrap_or_default();
    let verbs = counted(a, 0, |byte| byte == b'%');
    let widest = match a.first() {
        Some(Value::Text(format)) => crate::print::widest(format),
        _ => 0,
    };
    // A value in a list is padded and escaped, and copied with the list.
    let node = DIGITS.saturating_add(widest).saturating_mul(4);
    let written = |value| Size::of(std::slice::from_ref(value)).times(node, 24);
    let longest = rest.iter().map(written).max().unwrap_or(0);
    let extra = full::<64, 3>(rest);
    thrice(length(a, 0))
        .saturating_add(verbs.saturating_mul(longest.saturating_add(DIGITS)))
        .saturating_add(extra)
}
