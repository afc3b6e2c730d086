//! Names of C++ templates, short enough for a line of text.
//!
//! A kernel of PyTorch has a name of several hundred characters, most of which are the namespaces and arguments of
//! its template arguments. What tells one from another comes first and stays longest.

use std::borrow::Cow;

/// Characters that a name may have.
pub const WIDTH: usize = 120;

/// A demangled name as it is if it is not wider than [`WIDTH`]. Else, as far as needed, without its result `void` and
/// its parameters, without namespaces inside template arguments, without the arguments of arguments, and cut at the
/// end. What went is `…`, except for namespaces.
pub fn brief(name: &str) -> Cow<'_, str> {
    if fits(name) {
        return Cow::Borrowed(name);
    }
    let Some(tokens) = tokens(name) else {
        return Cow::Owned(cut(name));
    };
    let mut tokens = without_parameters(&tokens);
    let mut text = join(&tokens);
    if !fits(&text) {
        tokens = without_namespaces(&tokens);
        text = join(&tokens);
    }
    for depth in [3, 2] {
        if fits(&text) {
            break;
        }
        text = join(&without_depth(&tokens, depth));
    }
    Cow::Owned(if fits(&text) { text } else { cut(&text) })
}

fn fits(text: &str) -> bool {
    text.chars().count() <= WIDTH
}

fn cut(text: &str) -> String {
    text.chars().take(WIDTH - 1).chain(['…']).collect()
}

/// A piece of a name: a bracket, or what lies between brackets, `::` and `, `.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    /// Brackets around it; a bracket counts itself.
    depth: usize,
}

fn opens(text: &str) -> bool {
    matches!(text, "<" | "(" | "{" | "[")
}

fn closes(text: &str) -> bool {
    matches!(text, ">" | ")" | "}" | "]")
}

/// `None` where brackets do not pair, as in names with operators.
fn tokens(name: &str) -> Option<Vec<Token<'_>>> {
    if ["operator<", "operator>", "operator-", "->"]
        .iter()
        .any(|unpaired| name.contains(unpaired))
    {
        return None;
    }
    let (mut tokens, mut open, mut rest) = (Vec::new(), Vec::new(), name);
    while !rest.is_empty() {
        let len = match rest.find(['<', '>', '(', ')', '{', '}', '[', ']', ',', ':']) {
            Some(0) if rest.starts_with("::") => 2,
            Some(0) if rest.starts_with(", ") => 2,
            Some(0) => 1,
            Some(at) if rest[..at].ends_with("operator") && rest[at..].starts_with("()") => at + 2,
            Some(at) => at,
            None => rest.len(),
        };
        let (text, after) = rest.split_at(len);
        rest = after;
        if opens(text) {
            open.push(text);
        }
        tokens.push(Token {
            text,
            depth: open.len(),
        });
        if closes(text) {
            let pair = [open.pop()?, text].concat();
            if !matches!(pair.as_str(), "<>" | "()" | "{}" | "[]") {
                return None;
            }
        }
    }
    open.is_empty().then_some(tokens)
}

fn join(tokens: &[Token<'_>]) -> String {
    let mut text = tokens.iter().map(|t| t.text).collect::<String>();
    while text.contains(" >") {
        text = text.replace(" >", ">");
    }
    text
}

/// `void` in front, and the last parentheses, which hold the parameters.
fn without_parameters<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = tokens.to_vec();
    if let Some(first) = kept.first_mut() {
        first.text = first.text.strip_prefix("void ").unwrap_or(first.text);
    }
    let end = kept.iter().rposition(|t| t.depth == 1 && t.text == ")");
    let begin = end.and_then(|end| {
        let before = kept[..end].iter();
        before.clone().rposition(|t| t.depth == 1 && t.text == "(")
    });
    if let (Some(begin), Some(end)) = (begin, end)
        && begin > 0
        && kept[begin - 1].text != "::"
    {
        kept.drain(begin..=end);
    }
    kept
}

/// Inside brackets, plain names that are followed by `::`; everywhere, namespaces without a name.
fn without_namespaces<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept: Vec<Token<'a>> = Vec::new();
    for token in tokens {
        let after = token.text == "::";
        let inside = after && token.depth > 0;
        let plain = |t: &Token<'_>| {
            t.depth == token.depth
                && !(opens(t.text) || closes(t.text) || t.text == "::" || t.text == ", ")
        };
        if inside && kept.last().is_some_and(plain) {
            kept.pop();
        } else if after
            && kept
                .iter()
                .rev()
                .map(|t| t.text)
                .take(3)
                .eq([")", "anonymous namespace", "("])
        {
            kept.truncate(kept.len() - 3);
        } else {
            kept.push(*token);
        }
    }
    kept
}

/// With what is in brackets from this depth on left out.
fn without_depth<'a>(tokens: &[Token<'a>], depth: usize) -> Vec<Token<'a>> {
    let mut kept: Vec<Token<'a>> = Vec::new();
    let mut omitted = false;
    for token in tokens {
        let bracket = opens(token.text) || closes(token.text);
        if token.depth < depth || token.depth == depth && bracket {
            kept.push(*token);
            omitted = false;
        } else if !omitted {
            kept.push(Token {
                text: "…",
                depth: token.depth,
            });
            omitted = true;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{WIDTH, brief};

    #[test]
    fn short_names_stay_as_they_are() {
        for name in [
            "gather(int const*, int*, int)",
            "",
            "a<b>(c)",
            "operator<(x)",
        ] {
            assert_eq!(brief(name), name);
        }
    }

    #[test]
    fn what_tells_kernels_apart_stays() {
        let of = |functor: &str| {
            format!(
                "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, \
                 at::native::binary_internal::{functor}<float> >, std::array<char*, (unsigned long)3> >(int, \
                 at::native::BinaryFunctor<float, float, float, at::native::binary_internal::{functor}<float> >, \
                 std::array<char*, (unsigned long)3>)"
            )
        };
        assert_eq!(
            brief(&of("MulFunctor")),
            "at::native::vectorized_elementwise_kernel<4, BinaryFunctor<float, float, float, MulFunctor<…>>, \
             array<char*, (…)3>>"
        );
        assert_ne!(brief(&of("MulFunctor")), brief(&of("AddFunctor")));
        let anonymous = format!(
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::\
             TensorListMetadata<2>, at::native::(anonymous namespace)::TernaryOpScalarFunctor<float, 2, 2, 0>, {0}>({0})",
            "at::native::LerpFunctor<float>, float"
        );
        assert_eq!(
            brief(&anonymous),
            "at::native::multi_tensor_apply_kernel<TensorListMetadata<…>, TernaryOpScalarFunctor<…>, \
             LerpFunctor<…>, float>"
        );
    }

    #[test]
    fn nothing_is_wider_whatever_it_is() {
        let long = "x".repeat(300);
        for name in [
            format!("{long}::{long}<{long}>({long})"),
            format!("operator<<{long}"),
            format!("f<{long}"),
            format!("f{}{}", "<(".repeat(100), ")>".repeat(100)),
            format!("({long})"),
            format!("void f({long})"),
            "é<".repeat(99),
            format!("a){long}"),
        ] {
            let short = brief(&name);
            assert!(short.chars().count() <= WIDTH, "{short}");
            assert!(!short.is_empty());
        }
        assert_eq!(brief(&format!("void f({long})")), "f");
        assert!(brief(&format!("f<{long}>(int)")).ends_with("xx…"));
    }
}
