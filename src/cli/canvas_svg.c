/* The SVG canvas: plain text that a person can read and edit. It is written when the drawing is done. */
#include <stdio.h>
#include <stdlib.h>
#include "cli/canvas.h"
#include "cli/cli.h"

typedef struct svg {
    canvas base;
    char *body;
    size_t bytes;
    FILE *out; /* into body */
} svg;

/* Classes rather than colours: the style at the top gives them their colours in light and in dark mode. */
static void put_class(FILE *out, ink colour)
{
    static const char *const names[] = {"paper", "ink", "faint", "grid"};
    if (colour < INK_SERIES)
        fprintf(out, "%s", names[colour]);
    else
        fprintf(out, "s%d", (int)(colour - INK_SERIES) % INK_COLOURS);
}

/* XML allows no control characters and nothing that is not UTF-8. */
static void put_text(FILE *out, const char *text)
{
    for (int n; *text; text += n ? n : 1) {
        n = shown_bytes(text);
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fprintf(out, "%.*s", n ? n : 3, n ? text : "\xef\xbf\xbd"); /* U+FFFD, "replaced" */
        }
    }
}

static void svg_line(canvas *c, int n, const double *xy, ink colour, double width, double opacity)
{
    FILE *out = ((svg *)c)->out;
    fputs("<path class=\"line ", out);
    put_class(out, colour);
    fprintf(out, "\" stroke-width=\"%.3g\"", width);
    if (opacity < 1)
        fprintf(out, " stroke-opacity=\"%.3g\"", opacity);
    fputs(" d=\"", out);
    for (int i = 0; i < n; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', xy[2 * i], xy[2 * i + 1]);
    fputs("\"/>\n", out);
}

static void svg_dot(canvas *c, double x, double y, double radius, ink colour)
{
    FILE *out = ((svg *)c)->out;
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.3g\" class=\"dot ", x, y, radius);
    put_class(out, colour);
    fputs("\"/>\n", out);
}

static void svg_text(canvas *c, double x, double y, const char *text, double size, anchor where, ink colour, bool bold)
{
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    FILE *out = ((svg *)c)->out;
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.3g\"%s%s class=\"", x, y, size, anchors[where],
            bold ? " font-weight=\"600\"" : "");
    put_class(out, colour);
    fputs("\">", out);
    put_text(out, text);
    fputs("</text>\n", out);
}

static const char style[] =
    "<style>\n"
    "svg { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }\n"
    ".line { fill: none; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".paper { fill: #ffffff; } text.ink { fill: #1f2328; } text.faint { fill: #59636e; }\n"
    ".line.grid { stroke: #e3e7ec; } .line.faint { stroke: #9aa4af; }\n"
    ".line.s0 { stroke: #1f6fd1; } .line.s1 { stroke: #d9680b; } .line.s2 { stroke: #1a8a4a; } .line.s3 { stroke: "
    "#b4309c; }\n"
    ".line.s4 { stroke: #0e8a94; } .line.s5 { stroke: #c4302b; } .line.s6 { stroke: #6d55c8; } .line.s7 { stroke: "
    "#84700a; }\n"
    ".dot.s0 { fill: #1f6fd1; } .dot.s1 { fill: #d9680b; } .dot.s2 { fill: #1a8a4a; } .dot.s3 { fill: #b4309c; }\n"
    ".dot.s4 { fill: #0e8a94; } .dot.s5 { fill: #c4302b; } .dot.s6 { fill: #6d55c8; } .dot.s7 { fill: #84700a; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    ".paper { fill: #0d1117; } text.ink { fill: #e6edf3; } text.faint { fill: #9198a1; }\n"
    ".line.grid { stroke: #262c35; } .line.faint { stroke: #5c6672; }\n"
    ".line.s0 { stroke: #58a6ff; } .line.s1 { stroke: #f0913a; } .line.s2 { stroke: #4cc06f; } .line.s3 { stroke: "
    "#e07bd0; }\n"
    ".line.s4 { stroke: #3cc0ca; } .line.s5 { stroke: #ff7b72; } .line.s6 { stroke: #a896ff; } .line.s7 { stroke: "
    "#d0b942; }\n"
    ".dot.s0 { fill: #58a6ff; } .dot.s1 { fill: #f0913a; } .dot.s2 { fill: #4cc06f; } .dot.s3 { fill: #e07bd0; }\n"
    ".dot.s4 { fill: #3cc0ca; } .dot.s5 { fill: #ff7b72; } .dot.s6 { fill: #a896ff; } .dot.s7 { fill: #d0b942; }\n"
    "}\n"
    "</style>\n";

static bool svg_finish(canvas *c, FILE *out)
{
    svg *s = (svg *)c;
    fclose(s->out);
    fprintf(out, SVG_BEGINNING " viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\">\n", s->base.width, s->base.height,
            s->base.width, s->base.height);
    fputs(style, out);
    fprintf(out, "<rect class=\"paper\" width=\"%g\" height=\"%g\"/>\n", s->base.width, s->base.height);
    fwrite(s->body, 1, s->bytes, out);
    fputs("</svg>\n", out);
    free(s->body);
    free(s);
    return !ferror(out);
}

canvas *canvas_svg(double width, double height)
{
    svg *s = must_alloc(1, sizeof *s);
    s->base = (canvas){width, height, svg_line, svg_dot, svg_text, svg_finish};
    s->out = open_memstream(&s->body, &s->bytes);
    if (!s->out)
        exit(fail(EX_OSERR, "out of memory"));
    return &s->base;
}
