//! A plot over the size as SVG, all axes logarithmic: the time, and beside it the bus bandwidth, or
//! the ratio of two libraries' times.

use super::report::{Head, Library, Row};
use crate::error::{Error, Result};
use oxccl_plan::words::counted;
use plotters::coord::Shift;
use plotters::prelude::*;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PANEL: (u32, u32) = (520, 440);
const LEGEND_WIDTH: u32 = 180;
/// Pixels of what [`heading`] writes.
pub(super) const HEAD_HEIGHT: u32 = 56;
const LINE_HEIGHT: i32 = 18;
/// Colours that stay apart, also for most who see fewer of them (Tol's and Okabe and Ito's).
const COLOURS: [RGBColor; 11] = [
    RGBColor(0x33, 0x66, 0xaa),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x11, 0x77, 0x33),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x99, 0x99, 0x33),
    RGBColor(0xcc, 0x66, 0x99),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x8c, 0x51, 0x0a),
];

/// A quantity that is drawn over the size.
#[derive(Clone, Copy)]
enum Quantity {
    Time,
    BusBandwidth,
    Ratio,
}

impl Quantity {
    /// Returns a row's value; `None` where there is none to draw.
    fn of(self, row: &Row) -> Option<f64> {
        let value = match self {
            Quantity::Time => Some(row.time_us),
            Quantity::BusBandwidth => Some(row.busbw),
            Quantity::Ratio => row.ratio,
        };
        value.filter(|value| *value > 0.0 && row.bytes > 0)
    }

    fn title(self) -> &'static str {
        match self {
            Quantity::Time => "time of an operation (µs)",
            Quantity::BusBandwidth => "bus bandwidth (GB/s)",
            Quantity::Ratio => "time of the other library / time of the first one",
        }
    }
}

/// The lines of one colour: a collective, and the library if there are several without a ratio.
struct Series<'a> {
    name: String,
    /// Out of place, and in place.
    rows: [Vec<&'a Row>; 2],
}

/// Draws a line for each collective and place: the times of the first library, and the ratio if
/// there are ratios, else the bus bandwidth.
pub(super) fn write(path: &str, head: &Head, rows: &[Row]) -> Result<()> {
    let compared = rows.iter().any(|row| row.ratio.is_some());
    let drawn: Vec<&Row> = rows.iter().filter(|row| !compared || row.ratio.is_some()).collect();
    let second = if compared { Quantity::Ratio } else { Quantity::BusBandwidth };
    let failed = |cause: String| Error::File { path: path.to_owned(), cause };
    let svg = draw(&titles(head, rows), &series(&drawn), [Quantity::Time, second]);
    let svg = svg.map_err(|e| failed(e.to_string()))?;
    std::fs::write(path, svg).map_err(|e| failed(e.to_string()))
}

/// Returns what was measured and where, and with what.
pub(super) fn titles(head: &Head, rows: &[Row]) -> [String; 2] {
    let Some(row) = rows.first() else { return Default::default() };
    let one = rows.iter().all(|other| other.collective == row.collective);
    let what = if one { row.collective } else { "all operations" };
    let device = if head.device_name.is_empty() { head.device } else { &head.device_name };
    let library = |Library { lib, version }: &Library| {
        format!("{} {version}", lib.rsplit('/').next().unwrap_or_default())
    };
    let libraries: Vec<String> = head.libraries.iter().map(library).collect();
    let graph = if head.graph > 0 { ", in graphs" } else { "" };
    let groups = head.aggregate.map_or(String::new(), |of| format!(", in groups of {of}"));
    let day = head.date.split('T').next().unwrap_or_default();
    [
        format!("{what} on {}, {device}", counted(head.ranks, "rank", "ranks")),
        format!("{}{graph}{groups}, {day}", libraries.join(" and ")),
    ]
}

fn series<'a>(rows: &[&'a Row]) -> Vec<Series<'a>> {
    let several = rows.iter().any(|row| row.lib != rows[0].lib);
    let mut all: Vec<Series<'a>> = Vec::new();
    for row in rows {
        let name = match several {
            true => format!("{} {}", row.collective, row.lib),
            false => row.collective.to_owned(),
        };
        let known = all.iter().position(|series| series.name == name);
        let at = known.unwrap_or_else(|| {
            all.push(Series { name, rows: [const { Vec::new() }; 2] });
            all.len() - 1
        });
        all[at].rows[usize::from(row.in_place)].push(row);
    }
    all
}

fn draw(titles: &[String; 2], series: &[Series<'_>], panels: [Quantity; 2]) -> Drawn<String> {
    let mut svg = String::new();
    {
        let size = (2 * PANEL.0 + LEGEND_WIDTH, PANEL.1 + HEAD_HEIGHT);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD_HEIGHT);
        heading(&head, titles)?;
        let (left, rest) = body.split_horizontally(PANEL.0);
        let (right, beside) = rest.split_horizontally(PANEL.0);
        for (quantity, area) in panels.into_iter().zip([left, right]) {
            panel(&area, series, quantity)?;
        }
        legend(&beside, series)?;
        root.present()?;
    }
    Ok(svg)
}

/// Writes the titles of a picture.
pub(super) fn heading(area: &Area<'_>, [title, second]: &[String; 2]) -> Drawn<()> {
    area.draw(&Text::new(title.as_str(), (12, 8), ("sans-serif", 18)))?;
    area.draw(&Text::new(second.as_str(), (12, 32), ("sans-serif", 13)))?;
    Ok(())
}

/// Returns the least and the greatest of the values, farther apart where they are one.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::MAX, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
    match low < high {
        true => low..high,
        false if high > 0.0 => low / 2.0..high * 2.0,
        false => 1.0..2.0,
    }
}

/// Draws the lines of one quantity.
fn panel(area: &Area<'_>, series: &[Series<'_>], quantity: Quantity) -> Drawn<()> {
    let rows = || series.iter().flat_map(|series| series.rows.iter().flatten());
    let drawn = || rows().filter_map(|row| Some((row.bytes as f64, quantity.of(row)?)));
    // The line where both take the same time is within the picture.
    let same = matches!(quantity, Quantity::Ratio).then_some(1.0);
    let bytes = range(drawn().map(|(bytes, _)| bytes));
    let values = range(drawn().map(|(_, value)| value).chain(same));
    let values = values.start / 1.05..values.end * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption(quantity.title(), ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(bytes.clone().log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("size")
        .x_labels(10)
        .y_labels(10)
        .x_label_formatter(&|bytes| bytes_text(*bytes))
        .y_label_formatter(&|value| number_text(*value))
        .light_line_style(WHITE)
        .draw()?;
    if same.is_some() {
        chart.draw_series(LineSeries::new([(bytes.start, 1.0), (bytes.end, 1.0)], BLACK))?;
    }
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let points = |place: usize| {
            let rows = series.rows[place].iter();
            rows.filter_map(|row| Some((row.bytes as f64, quantity.of(row)?)))
        };
        let style = ShapeStyle::from(colour).stroke_width(2);
        chart.draw_series(LineSeries::new(points(0), style))?;
        chart.draw_series(DashedLineSeries::new(points(1), 5, 4, style))?;
    }
    Ok(())
}

/// Draws the names of the lines, each in its colour.
fn legend(area: &Area<'_>, series: &[Series<'_>]) -> Drawn<()> {
    let font = ("sans-serif", 13).into_font();
    let mut y = 20;
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = vec![(8, y + 6), (32, y + 6)];
        area.draw(&PathElement::new(line, ShapeStyle::from(colour).stroke_width(2)))?;
        area.draw(&Text::new(series.name.as_str(), (40, y), font.clone()))?;
        y += LINE_HEIGHT;
    }
    if series.iter().any(|series| !series.rows[1].is_empty()) {
        area.draw(&Text::new("dashed: in place", (8, y + LINE_HEIGHT), font))?;
    }
    Ok(())
}

/// Returns a number without what its binary form adds to it.
fn number_text(value: f64) -> String {
    format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a number of bytes as `4 KiB`.
fn bytes_text(bytes: f64) -> String {
    let (value, unit) = match bytes {
        _ if bytes >= 2f64.powi(30) => (bytes / 2f64.powi(30), "GiB"),
        _ if bytes >= 2f64.powi(20) => (bytes / 2f64.powi(20), "MiB"),
        _ if bytes >= 2f64.powi(10) => (bytes / 2f64.powi(10), "KiB"),
        _ => (bytes, "B"),
    };
    format!("{} {unit}", (value * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(collective: &'static str, bytes: u64, in_place: bool, ratio: Option<f64>) -> Row {
        Row {
            collective,
            lib: "oxccl".to_owned(),
            bytes,
            count: bytes / 4,
            dtype: "float",
            op: "sum",
            root: -1,
            in_place,
            pair: None,
            iterations: 1,
            time_us: 3.0 + bytes as f64 / 1e3,
            time_us_min: 3.0,
            cpu_us: 1.0,
            blocks: None,
            algbw: 1.0,
            busbw: 1.0 + bytes as f64,
            ratio,
            wrong: 0,
        }
    }

    fn drawn(rows: &[Row]) -> String {
        let library = |lib: &str| Library { lib: lib.to_owned(), version: "2.30.7".to_owned() };
        let head = Head {
            oxccl: "0.1.0",
            libraries: vec![library("oxccl"), library("/a/libnccl.so.2")],
            date: "2026-11-25T12:49:55Z".to_owned(),
            host: "node1".to_owned(),
            launcher: "--ranks",
            device: "cuda",
            device_name: "a GPU <&>".to_owned(),
            driver: None,
            ranks: 2,
            memory: 0,
            vs_memory: None,
            graph: 20,
            aggregate: None,
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        write(file.path().to_str().expect("a path"), &head, rows).expect("it is drawn");
        std::fs::read_to_string(file.path()).expect("it was written")
    }

    #[test]
    fn numbers_of_an_axis_are_short() {
        let numbers = [0.1 + 0.2, 1e6, 250.0, 0.001, 2.5];
        assert_eq!(numbers.map(number_text), ["0.3", "1000000", "250", "0.001", "2.5"]);
    }

    #[test]
    fn each_operation_has_a_colour_of_its_own() {
        let distinct: std::collections::HashSet<_> =
            COLOURS.iter().map(|RGBColor(red, green, blue)| (red, green, blue)).collect();
        assert_eq!(distinct.len(), COLOURS.len());
        assert!(COLOURS.len() >= super::super::options::Kind::EACH.len());
    }

    #[test]
    fn a_plot_says_what_was_measured_where_and_with_what() {
        let mut rows = vec![
            row("all_reduce", 8, false, Some(1.5)),
            row("all_reduce", 8192, false, Some(2.0)),
            row("broadcast", 8, true, Some(0.5)),
            row("broadcast", 8192, true, Some(0.7)),
        ];
        rows.push(Row { lib: "/a/libnccl.so.2".to_owned(), ..row("broadcast", 8, true, None) });
        let svg = drawn(&rows);
        for text in [
            "all operations on 2 ranks, a GPU &lt;&amp;&gt;",
            "oxccl 2.30.7 and libnccl.so.2 2.30.7, in graphs, 2026-11-25",
            "time of an operation (µs)",
            "time of the other library / time of the first one",
            "size",
            "4 KiB",
            "dashed: in place",
        ] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        // In both panels a line for all-reduce, dashes for broadcast, and one line for equal times.
        assert_eq!(svg.matches(">\nall_reduce\n<").count(), 1, "{svg}");
        let of = |colour| svg.matches(&format!("stroke=\"{colour}\"")).count();
        assert_eq!(of("#3366AA"), 3, "{svg}");
        assert!(of("#D55E00") > 10, "{svg}");
    }

    #[test]
    fn rows_without_a_ratio_have_their_bus_bandwidth_drawn_and_no_rows_an_empty_plot() {
        let svg = drawn(&[row("all_reduce", 8, false, None)]);
        assert!(svg.contains("bus bandwidth (GB/s)") && svg.contains("all_reduce on 2 ranks"));
        assert!(!svg.contains("in place"), "{svg}");
        assert!(drawn(&[]).contains("<svg"));
    }

    #[test]
    fn bytes_have_units() {
        let texts = [1.0, 1024.0, 1536.0, 1048576.0, 1e10].map(bytes_text);
        assert_eq!(texts, ["1 B", "1 KiB", "1.5 KiB", "1 MiB", "9.3 GiB"]);
    }
}
