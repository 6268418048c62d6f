//! Generation of `docs/speed.svg` from the tables of the results.

use plotters::prelude::*;
use std::error::Error;
use std::ops::RangeInclusive;
use std::path::Path;

/// The file, from the root of the repository.
pub const FILE: &str = "docs/speed.svg";

/// A line of the picture: columns of a table in a file of results.
struct Line {
    name: &'static str,
    file: &'static str,
    /// A heading above the table, and the beginning of the table's own first line.
    below: &'static str,
    table: &'static str,
    /// The columns of the size, of the other library's time and of this one's.
    columns: [usize; 3],
    colour: RGBColor,
}

const LINES: [Line; 4] = [
    Line {
        name: "8 processes, ncclMemAlloc, beside Open MPI",
        file: "docs/results/host-2026-11-21.md",
        below: "\n8 ranks\n",
        table: "| bytes |",
        columns: [0, 1, 3],
        colour: RGBColor(46, 139, 87),
    },
    Line {
        name: "8 processes, malloc, beside Open MPI",
        file: "docs/results/host-2026-11-21.md",
        below: "\n8 ranks\n",
        table: "| bytes |",
        columns: [0, 1, 2],
        colour: RGBColor(199, 125, 10),
    },
    Line {
        name: "2 GPUs, graphs, beside NCCL",
        file: "docs/gpu-results.md",
        below: "\n## Speed",
        table: "| bytes | 2 GPUs",
        columns: [0, 2, 1],
        colour: RGBColor(27, 108, 168),
    },
    Line {
        name: "2 GPUs, PyTorch's plain tensors, beside NCCL",
        file: "docs/gpu-results.md",
        below: "\n## Speed",
        table: "| | bytes |",
        columns: [1, 2, 3],
        colour: RGBColor(209, 73, 91),
    },
];

/// Converts a size as the tables write it to bytes: `512`, `32 Ki`, `128 Mi`.
fn bytes(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "" => 1.0,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

impl Line {
    /// Returns the points of the line: the size, and how many times as fast this library is.
    fn points(&self, root: &Path) -> Result<Vec<(i32, i32)>, Box<dyn Error>> {
        let text = std::fs::read_to_string(root.join(self.file))?;
        let missing = || format!("{}: no table {:?}", self.file, self.table);
        let (_, rest) = text.split_once(self.below).ok_or_else(missing)?;
        let rows = rest.lines().skip_while(|line| !line.starts_with(self.table)).skip(2);
        let mut points = Vec::new();
        for row in rows.take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            // A table of several collectives has all-reduce first.
            if self.columns[0] == 1 && !["", "all-reduce"].contains(&cells[0]) {
                break;
            }
            let bad = || format!("{}: {row:?} has no numbers where they are expected", self.file);
            let [size, theirs, ours] = self.columns.map(|column| cells.get(column).copied());
            let size = size.and_then(bytes).ok_or_else(bad)?;
            let time = |cell: Option<&str>| cell.and_then(|cell| cell.parse::<f64>().ok());
            let (theirs, ours) = (time(theirs).ok_or_else(bad)?, time(ours).ok_or_else(bad)?);
            points.push((place(size), place(theirs / ours)));
        }
        if points.is_empty() { Err(missing().into()) } else { Ok(points) }
    }
}

/// The length of a power of two on both axes.
const POWER: i32 = 1000;

/// Returns the place of a number on an axis.
fn place(number: f64) -> i32 {
    (number.log2() * f64::from(POWER)).round() as i32
}

fn size_text(place: i32) -> String {
    match place / POWER {
        power @ 0..10 => format!("{} B", 1 << power),
        power @ 10..20 => format!("{} KiB", 1 << (power - 10)),
        power => format!("{} MiB", 1 << (power - 20)),
    }
}

fn ratio_text(place: i32) -> String {
    format!("{} ×", 2f64.powi(place / POWER))
}

/// Returns the text of the file.
pub fn text(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (800, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let marks = |range: RangeInclusive<i32>, step| {
            range.step_by(step).map(|power| power * POWER).collect::<Vec<i32>>()
        };
        let sizes = (3 * POWER..28 * POWER).with_key_points(marks(3..=27, 4));
        let ratios = (-3 * POWER / 2..9 * POWER / 2).with_key_points(marks(-1..=4, 1));
        let mut chart = ChartBuilder::on(&area)
            .caption("All-reduce: how many times as fast as the other library", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(sizes, ratios)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|power| size_text(*power))
            .y_label_formatter(&|power| ratio_text(*power))
            .x_desc("size of the buffer")
            .label_style(("sans-serif", 13))
            .draw()?;
        chart.draw_series([PathElement::new([(3 * POWER, 0), (28 * POWER, 0)], BLACK)])?;
        for line in &LINES {
            let (points, style) = (line.points(root)?, line.colour.stroke_width(2));
            chart
                .draw_series(LineSeries::new(points, style).point_size(3))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// Writes the file.
pub fn write(root: &Path) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(root.join(FILE), text(root)?)?)
}
