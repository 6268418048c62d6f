//! A machine as a picture: parts as boxes in boxes, and the links between GPUs as a table.

use super::paths;
use super::text::{Item, Kind};
use oxccl_runtime::device::{GpuLinks, Link};
use plotters::prelude::*;

type Failure = Box<dyn std::error::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Pixels of a character, of a line of text, and between boxes.
const CHARACTER: f64 = 7.0;
const LINE: i32 = 22;
const GAP: i32 = 8;
/// Pixels of a field of the table.
const FIELD: i32 = 56;

/// Returns the width and height of a text.
fn extent(text: &str) -> (i32, i32) {
    ((text.chars().count() as f64 * CHARACTER) as i32 + 2 * GAP, LINE)
}

/// Returns the width and height of a box with what is in it. The parts of a machine stand beside
/// each other, others below each other.
fn measure(item: &Item) -> (i32, i32) {
    let (mut width, mut height) = extent(&item.label);
    let children: Vec<(i32, i32)> = item.children.iter().map(measure).collect();
    let most = |sizes: &mut dyn Iterator<Item = i32>| sizes.max().unwrap_or(0);
    if children.is_empty() {
        return (width, height);
    }
    let (inner_width, inner_height) = match item.kind {
        Kind::Machine => (
            children.iter().map(|(w, _)| w + GAP).sum::<i32>() - GAP,
            most(&mut children.iter().map(|(_, h)| *h)),
        ),
        _ => (
            most(&mut children.iter().map(|(w, _)| *w)),
            children.iter().map(|(_, h)| h + GAP).sum::<i32>() - GAP,
        ),
    };
    width = width.max(inner_width + 2 * GAP);
    height += inner_height + GAP;
    (width, height)
}

fn colour(kind: Kind) -> RGBColor {
    match kind {
        Kind::Machine => RGBColor(255, 255, 255),
        Kind::Node => RGBColor(240, 240, 240),
        Kind::Processors => RGBColor(214, 228, 245),
        Kind::Bridge => RGBColor(226, 226, 226),
        Kind::Gpu => RGBColor(205, 235, 200),
        Kind::Network => RGBColor(250, 226, 196),
    }
}

/// Draws a box of this width.
fn boxes(area: &Area<'_>, item: &Item, (x, y): (i32, i32), width: i32) -> Result<(), Failure> {
    let height = measure(item).1;
    let corners = [(x, y), (x + width, y + height)];
    area.draw(&Rectangle::new(corners, colour(item.kind).filled()))?;
    area.draw(&Rectangle::new(corners, RGBColor(120, 120, 120).stroke_width(1)))?;
    let font = ("sans-serif", 13).into_font();
    area.draw(&Text::new(item.label.clone(), (x + GAP, y + 4), font))?;
    let (mut left, mut top) = (x + GAP, y + LINE);
    for child in &item.children {
        let (own, high) = measure(child);
        match item.kind {
            Kind::Machine => {
                boxes(area, child, (left, top), own)?;
                left += own + GAP;
            }
            _ => {
                boxes(area, child, (left, top), width - 2 * GAP)?;
                top += high + GAP;
            }
        }
    }
    Ok(())
}

/// Draws the links between GPUs as a table.
fn table(area: &Area<'_>, gpus: &[GpuLinks], (x, y): (i32, i32)) -> Result<(), Failure> {
    let font = || ("sans-serif", 13).into_font();
    area.draw(&Text::new("links between GPUs", (x, y + 4), font()))?;
    let at = |i: usize| i as i32 * FIELD;
    for (i, gpu) in gpus.iter().enumerate() {
        let number = gpu.index.to_string();
        let (row, column) = (y + 2 * LINE + at(i), x + LINE + at(i));
        area.draw(&Text::new(number.clone(), (x, row + FIELD / 2 - 7), font()))?;
        area.draw(&Text::new(number, (column + FIELD / 2 - 4, y + LINE + 4), font()))?;
        for (j, link) in gpu.links.iter().enumerate() {
            let left = x + LINE + at(j);
            let field = [(left, row), (left + FIELD - 2, row + FIELD - 2)];
            let fill = match link {
                Link::Own => RGBColor(240, 240, 240),
                Link::NvLink => RGBColor(160, 215, 150),
                Link::Pcie => RGBColor(250, 226, 150),
                Link::HostMemory => RGBColor(240, 170, 150),
            };
            area.draw(&Rectangle::new(field, fill.filled()))?;
            let place = (left + 6, row + FIELD / 2 - 7);
            area.draw(&Text::new(paths::name(*link), place, font()))?;
        }
    }
    Ok(())
}

/// Returns the picture of a machine.
pub(super) fn draw(tree: &Item, gpus: &[GpuLinks]) -> Result<String, Failure> {
    let (width, height) = measure(tree);
    let side = match gpus.len() {
        0 | 1 => (0, 0),
        many => {
            let side = many as i32 * FIELD + LINE;
            (side.max(extent("links between GPUs").0), side + LINE + GAP)
        }
    };
    let whole = (width.max(side.0) + 2 * GAP, height + side.1 + 2 * GAP);
    let mut svg = String::new();
    {
        let size = (whole.0 as u32, whole.1 as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        boxes(&area, tree, (GAP, GAP), width)?;
        if gpus.len() > 1 {
            table(&area, gpus, (GAP, height + 2 * GAP))?;
        }
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: Kind, label: &str, children: Vec<Item>) -> Item {
        Item { kind, label: label.to_owned(), children }
    }

    #[test]
    fn boxes_have_room_for_what_is_in_them() {
        let leaf = || item(Kind::Gpu, "a GPU with a long name", Vec::new());
        let node = item(Kind::Node, "n", vec![leaf(), leaf()]);
        let (leaf_size, node_size) = (measure(&leaf()), measure(&node));
        assert!(node_size.0 > leaf_size.0 && node_size.1 > 2 * leaf_size.1);
        let machine = item(Kind::Machine, "m", vec![node.clone(), node]);
        assert!(measure(&machine).0 > 2 * node_size.0);
    }

    #[test]
    fn a_picture_has_all_labels_and_links_and_names_break_nothing() {
        let tree = item(Kind::Machine, "a <b> & c", vec![item(Kind::Gpu, "d", Vec::new())]);
        let gpu = |index: i32, links: [Link; 2]| GpuLinks {
            index,
            pci: String::new(),
            links: links.to_vec(),
        };
        let gpus = [gpu(0, [Link::Own, Link::NvLink]), gpu(1, [Link::NvLink, Link::Own])];
        let svg = draw(&tree, &gpus).expect("a picture");
        assert!(svg.contains("a &lt;b&gt; &amp; c") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("NVLink") && svg.trim_end().ends_with("</svg>"), "{svg}");
        let small = draw(&item(Kind::Machine, "", Vec::new()), &[]).expect("a picture");
        assert!(!small.contains("links between GPUs"), "{small}");
    }
}
