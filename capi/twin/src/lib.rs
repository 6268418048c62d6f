//! The attribute `twin`: NCCL exports each function `ncclX` as `pncclX` too, so that a tool which
//! replaces the first one can call the second one.

use proc_macro::{Ident, TokenStream, TokenTree};

/// Defines the function once more, with a `p` before its name. Both have the same body: neither
/// calls the other, which may have been replaced.
#[proc_macro_attribute]
pub fn twin(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut twin = Vec::new();
    let mut name = None;
    let mut tokens = item.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        let hash = matches!(&token, TokenTree::Punct(mark) if mark.as_char() == '#');
        if hash && tokens.peek().is_some_and(is_doc) {
            tokens.next();
            continue;
        }
        let begins = name.is_none() && matches!(&token, TokenTree::Ident(word) if is(word, "fn"));
        twin.push(token);
        if begins && let Some(TokenTree::Ident(original)) = tokens.next() {
            twin.push(Ident::new(&format!("p{original}"), original.span()).into());
            name = Some(original.to_string());
        }
    }
    let name = name.unwrap_or_default();
    // The safety contract is documented at the original function.
    let allow = "#[allow(clippy::missing_safety_doc)]";
    let doc = format!("#[doc = \"Same as [`{name}`].\"] {allow}");
    let doc: TokenStream = doc.parse().unwrap_or_default();
    item.into_iter().chain(doc).chain(twin).collect()
}

fn is(word: &Ident, text: &str) -> bool {
    word.to_string() == text
}

/// Returns whether these are the contents of a `doc` attribute.
fn is_doc(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(word)) if is(&word, "doc"))
}
